"""Chooses which events of a pack are computed, and sets other events aside. Runs in Spark's executors, without Django.

Of several copies of an event, one copy is chosen. Not chosen are events that name another room version than their room
has, events that are stored already, and events of stored rooms.

All events of a room are in one pack, so usually all copies of an event are in the same pack. There is one exception: in
rooms of versions 1 and 2, servers choose event IDs. So a room in another pack may have an event with the same ID.
*Marks* say which events of a pack also exist in the database or in another pack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from events.errors import Reason
from pipeline.frames.schemas import SET_ASIDE

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = [
    "EVENT_KNOWN",
    "KEYS_OF_COPIES",
    "MARKS",
    "NAMED",
    "ROOM_KNOWN",
    "VERSION_DIFFERS",
    "WRONG_ID",
    "Chosen",
    "Mark",
    "choose_events",
    "copies_elsewhere",
    "in_order",
    "marks_table",
]

VERSION_DIFFERS, EVENT_KNOWN, ROOM_KNOWN = "room-version-differs", "event-known", "room-known"
WRONG_ID = str(Reason.WRONG_EVENT_ID)
MARKS = "room_id string, event_id string, mark string"
"""The columns of marks. ``event_id`` is null in a mark of a room."""
KEYS_OF_COPIES = ("source", "line", "room_id", "event_id", "outlier", "content_hash_matches")
"""The columns of ``EVENTS`` that decide between copies of an event."""
NAMED = ("1", "2")
"""The versions of rooms in which servers choose event IDs. In all other versions, an event's ID is a hash that covers the
room ID."""
_ROWS_PER_BATCH = 2_000
_CREATE = "m.room.create"
_KEYS = (
    *("source", "line", "stream_ordering", "room_id", "room_version"),
    *("event_id", "type", "outlier", "content_hash_matches"),
)
_OF_ASIDE = [name for name in SET_ASIDE.names if name in _KEYS]


class Mark(StrEnum):
    """The meaning of a mark: where an event or a room of a pack exists outside of the pack."""

    COPY = "copy"
    """A better copy of the event is in another room."""
    STORED = "stored"
    """The event is stored."""
    STORED_ELSEWHERE = "stored-elsewhere"
    """Another room has an event with its ID, which is stored."""
    STORED_OUTLIER = "stored-outlier"
    """The event is stored as an outlier of the same room. The event of the pack is set aside only if it is an outlier, too."""
    ROOM_STORED = "room-stored"
    """The room is stored."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The result of ``choose_events``.

    ``order`` has the row numbers of the chosen events: room after room, and within a room in the order of its events.

    ``set_aside`` has the events that were not chosen, with the reason (columns of ``SET_ASIDE``). Surplus copies of
    events are not listed. ``rows_aside`` has the row numbers of the events in ``set_aside``.
    """

    order: np.ndarray[Any, Any]
    set_aside: pa.RecordBatch
    rows_aside: np.ndarray[Any, Any]


def choose_events(batches: Sequence[pa.RecordBatch], marks: pa.Table) -> Chosen:
    """Chooses the events of a pack that are to be computed. ``batches`` have the columns of ``EVENTS``.

    ``marks`` has the columns of ``MARKS``. The function keeps the IDs of all events in memory, but not their JSON.
    """
    return _Choice(batches, marks).made()


class _Choice:
    def __init__(self, batches: Sequence[pa.RecordBatch], marks: pa.Table) -> None:
        import numpy as np  # noqa: PLC0415 - executors only
        import pyarrow as pa  # noqa: PLC0415

        self._keys = pa.Table.from_batches([batch.select(list(_KEYS)) for batch in batches]).combine_chunks()
        self._marks = marks
        rooms, self._room = _coded(self._keys, "room_id")
        self._rooms: list[str] = rooms.to_pylist()
        self._is_chosen = np.ones(self._keys.num_rows, dtype=bool)
        self._aside: list[tuple[int, str, str]] = []

    def made(self) -> Chosen:
        import numpy as np  # noqa: PLC0415 - executors only
        import pyarrow as pa  # noqa: PLC0415

        if self._marks.num_rows:
            self._leave_out_marked()
        self._leave_out_copies()
        self._leave_out_other_versions()
        if self._marks.num_rows:
            self._leave_out_known_rooms()
        rows, reasons, details = zip(*self._aside, strict=True) if self._aside else ((), (), ())
        columns = self._keys.select(_OF_ASIDE).take(pa.array(rows, pa.int64())).to_pydict()
        columns |= {"reason": reasons, "detail": details}
        set_aside = pa.RecordBatch.from_pydict(columns, schema=SET_ASIDE.arrow())
        return Chosen(self._order(), set_aside, np.array(rows, dtype=np.int64))

    def _leave_out_marked(self) -> None:
        import numpy as np  # noqa: PLC0415 - executors only
        from pyarrow import compute  # noqa: PLC0415

        named = self._marks.filter(compute.is_valid(self._marks["event_id"]))
        found = zip(*named.to_pydict().values(), strict=True)
        # An event may have two marks: ``COPY``, and a mark of a stored event. The sort makes the mark of the stored
        # event win, because a stored event is left out of all rooms of the sources anyway. Then it does not matter
        # which room has the best copy.
        marks = {(room, event): mark for room, event, mark in sorted(found, key=lambda row: row[2] != Mark.COPY)}
        likely = compute.is_in(self._keys["event_id"], value_set=named["event_id"].combine_chunks())
        outlier = self._keys["outlier"]
        for row in np.flatnonzero(_numpy(likely)).tolist():
            room_id, event_id = self._rooms[self._room[row]], self._keys["event_id"][row].as_py()
            mark = marks.get((room_id, event_id))
            if mark is None or (mark == Mark.STORED_OUTLIER and not outlier[row].as_py()):
                continue
            self._is_chosen[row] = False
            if mark in (Mark.COPY, Mark.STORED_ELSEWHERE):
                self._set_aside_wrong_id(row)
            else:
                self._aside.append((row, EVENT_KNOWN, f"event {event_id} is stored already"))

    def _set_aside_wrong_id(self, row: int) -> None:
        # It is no copy of the other event, so it would be lost without a word.
        self._aside.append(
            (row, WRONG_ID, f"another room has an event with the ID {self._keys['event_id'][row].as_py()}")
        )

    def _leave_out_copies(self) -> None:
        """Leaves out all copies of an event except the best copy."""
        import numpy as np  # noqa: PLC0415 - executors only

        distinct, event = _coded(self._keys, "event_id")
        if len(distinct) == len(event):
            return
        several = np.bincount(event[self._is_chosen], minlength=len(distinct))[event] > 1
        ranked = _best_first(self._keys, np.flatnonzero(several & self._is_chosen), event)
        starts = np.flatnonzero(np.diff(event[ranked], prepend=-1))
        best = np.repeat(ranked[starts], np.diff(starts, append=len(ranked)))
        self._is_chosen[ranked[ranked != best]] = False
        for row in ranked[self._room[ranked] != self._room[best]].tolist():
            self._set_aside_wrong_id(row)

    def _leave_out_other_versions(self) -> None:
        """Leaves out events whose room version differs from the version of their room.

        A room has the version that its create event names. If there is no create event, it has the version of most of
        its events.
        """
        import numpy as np  # noqa: PLC0415 - executors only
        from pyarrow import compute  # noqa: PLC0415

        found, version = _coded(self._keys, "room_version")
        if len(found) < 2:
            return
        versions = found.to_pylist()
        creates = _numpy(compute.equal(self._keys["type"], _CREATE))
        both = self._room.astype(np.int64) * len(versions) + version
        counted = Counter(
            dict(zip(*map(np.ndarray.tolist, np.unique(both[self._is_chosen], return_counts=True)), strict=True))
        )
        created = set(both[self._is_chosen & creates].tolist())
        of_room: dict[int, list[int]] = {}
        for pair in counted:
            of_room.setdefault(pair // len(versions), []).append(pair)
        for pairs in of_room.values():
            best, *others = sorted(
                pairs, key=lambda pair: (pair not in created, -counted[pair], versions[pair % len(versions)])
            )
            for row in np.flatnonzero(np.isin(both, others) & self._is_chosen).tolist() if others else ():
                named, of_its_room = versions[version[row]], versions[best % len(versions)]
                room_id = self._rooms[self._room[row]]
                detail = f"said to be of version {named}, but room {room_id} has version {of_its_room}"
                self._aside.append((row, VERSION_DIFFERS, detail))
                self._is_chosen[row] = False

    def _leave_out_known_rooms(self) -> None:
        import numpy as np  # noqa: PLC0415 - executors only
        from pyarrow import compute  # noqa: PLC0415

        stored = set(self._marks.filter(compute.equal(self._marks["mark"], Mark.ROOM_STORED))["room_id"].to_pylist())
        codes = [code for code, room_id in enumerate(self._rooms) if room_id in stored]
        for row in np.flatnonzero(np.isin(self._room, codes) & self._is_chosen).tolist():
            self._aside.append((row, ROOM_KNOWN, f"room {self._rooms[self._room[row]]} is stored already"))
            self._is_chosen[row] = False

    def _order(self) -> np.ndarray[Any, Any]:
        """Returns the row numbers of the chosen events, sorted by room, stream ordering (nulls last) and place in the source."""
        import numpy as np  # noqa: PLC0415 - executors only

        rows = np.flatnonzero(self._is_chosen)
        given = ~_numpy(self._keys["stream_ordering"].is_null())
        by = [
            _numbers(self._keys, "line"),
            _numbers(self._keys, "source"),
            _numbers(self._keys, "stream_ordering"),
            ~given,
        ]
        places = np.empty(len(self._rooms), dtype=np.int64)
        places[sorted(range(len(self._rooms)), key=self._rooms.__getitem__)] = np.arange(len(self._rooms))
        return rows[np.lexsort([values[rows] for values in (*by, places[self._room])])]


# --- copies in several rooms ------------------------------------------------------------------------------------------


def copies_elsewhere(keys: pa.Table) -> pa.Table:
    """Returns marks for events that are in several rooms. Each of these rooms gets a mark, except the room with the best copy.

    ``keys`` has the columns ``KEYS_OF_COPIES``, and all copies of each of its events.
    """
    import numpy as np  # noqa: PLC0415 - executors only
    import pyarrow as pa  # noqa: PLC0415

    distinct, event = _coded(keys, "event_id")
    rooms, room = _coded(keys, "room_id")
    ranked = _best_first(keys, np.flatnonzero(np.bincount(event, minlength=len(distinct))[event] > 1), event)
    starts = np.flatnonzero(np.diff(event[ranked], prepend=-1))
    best = np.repeat(ranked[starts], np.diff(starts, append=len(ranked)))
    others = ranked[room[ranked] != room[best]]
    pairs = np.unique(np.stack([room[others], event[others]]), axis=1)
    found = {"room_id": rooms.take(pa.array(pairs[0])), "event_id": distinct.take(pa.array(pairs[1]))}
    return pa.table({**found, "mark": pa.repeat(pa.scalar(str(Mark.COPY)), pairs.shape[1])})


def marks_table(rows: Iterable[tuple[str, str | None, Mark]]) -> pa.Table:
    """Returns marks as a table. ``rows`` yields (room ID, event ID or None, mark)."""
    import pyarrow as pa  # noqa: PLC0415 - executors only

    names = [column.split()[0] for column in MARKS.split(", ")]
    columns = zip(*((room_id, event_id, str(mark)) for room_id, event_id, mark in rows), strict=True)
    values = list(columns) or [()] * len(names)
    return pa.table({name: pa.array(some, pa.string()) for name, some in zip(names, values, strict=True)})


# --- columns ----------------------------------------------------------------------------------------------------------


def _best_first(keys: pa.Table, rows: np.ndarray[Any, Any], event: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sorts the row numbers ``rows`` by event, and the copies of an event from the best to the worst.

    A copy that is no outlier is better than an outlier. If two copies are equal in this, a copy whose content matches its
    hash is better. If they are equal in this too, the first copy is better. ``event`` has the number of each row's event.
    """
    import numpy as np  # noqa: PLC0415 - executors only

    outlier, other_hash = _numpy(keys["outlier"]), ~_numpy(keys["content_hash_matches"])
    by = (_numbers(keys, "line"), _numbers(keys, "source"), other_hash, outlier, event)
    ranked: np.ndarray[Any, Any] = rows[np.lexsort([values[rows] for values in by])]
    return ranked


def _coded(keys: pa.Table, name: str) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Returns (distinct values of a column, index of each row's value among them).

    The distinct values are not converted to Python objects, because a large room has millions of distinct event IDs.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only

    column = keys[name].dictionary_encode().combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # no rows
        column = column.chunk(0) if column.num_chunks else pa.array([], pa.dictionary(pa.int32(), pa.string()))
    return column.dictionary, column.indices.to_numpy()


def _numbers(keys: pa.Table, name: str) -> np.ndarray[Any, Any]:
    """Returns the values of an integer column, with 0 in place of null."""
    from pyarrow import compute  # noqa: PLC0415 - executors only

    return _numpy(compute.fill_null(keys[name], 0))


def _numpy(column: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = column.to_numpy()
    return found


def in_order(
    batches: Sequence[pa.RecordBatch], order: np.ndarray[Any, Any], rows: int = _ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of ``batches`` whose numbers are in ``order``, in the order of ``order``, ``rows`` in each batch."""
    import numpy as np  # noqa: PLC0415 - executors only

    ends = np.cumsum([batch.num_rows for batch in batches])
    for first in range(0, len(order), rows):
        yield _rows_at(batches, ends, order[first : first + rows])


def _rows_at(
    batches: Sequence[pa.RecordBatch], ends: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]
) -> pa.RecordBatch:
    import numpy as np  # noqa: PLC0415 - executors only
    import pyarrow as pa  # noqa: PLC0415

    places = np.searchsorted(ends, rows, side="right")
    by_batch = np.argsort(places, kind="stable")
    pieces = []
    for some in np.split(by_batch, np.flatnonzero(np.diff(places[by_batch])) + 1):
        batch = batches[places[some[0]]]
        pieces.append(batch.take(pa.array(rows[some] - (ends[places[some[0]]] - batch.num_rows))))
    found = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
    if len(pieces) == 1 or (by_batch[1:] > by_batch[:-1]).all():
        return found
    back = np.empty_like(by_batch)
    back[by_batch] = np.arange(len(by_batch))
    return found.take(pa.array(back))
