"""Reads the staged events of one room, for ``events.history``, which computes the room's rows. Needs no Django.

``EventsInMemory`` holds all events in memory. ``StagedEvents`` reads a chunk at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from events.format.parsing import ParsedEvent
from events.history.chunked_walk import EventSource
from events.history.rows import GivenEvents
from pipeline.importing.packed_events import Unpacker
from pipeline.importing.staging_tables import ROOMY, STAGED_EVENTS, table_name
from state.rules.room_versions import RoomVersion, room_version

__all__ = ["EventsInMemory", "RoomEvents", "StagedEvents"]

_ROWS_PER_FETCH = 5_000
_ORDER = "ORDER BY stream_ordering NULLS LAST, seq"
_NOT_GIVEN = 0


class RoomEvents(EventSource, Protocol):
    """The interface to a room's events and their places in the input. Events are numbered from 0, by stream ordering."""

    def check(self) -> None:
        """Raises ``HistoryError`` unless all events are of the same room."""
        ...

    def places(self, first: int, end: int) -> Sequence[int]:
        """Returns the places in the input of the events ``first`` to ``end`` (exclusive)."""
        ...

    def given_orderings(self, first: int, end: int) -> Sequence[int | None]:
        """Returns the stream orderings that the source gave the events ``first`` to ``end`` (exclusive).

        Null means that the source gave an event no stream ordering.
        """
        ...


class EventsInMemory(GivenEvents):
    """Events of a room that are all in memory."""

    def __init__(self, places: Sequence[int], given: Sequence[int | None], events: Sequence[ParsedEvent]) -> None:
        """Takes three sequences. Each has one item for each event, in the same order.

        ``places`` are the places in the input. ``given`` are the stream orderings that the source gave. ``events`` are
        the events.
        """
        self._places, self._given = places, given
        super().__init__(events)

    def places(self, first: int, end: int) -> Sequence[int]:
        return self._places[first:end]

    def given_orderings(self, first: int, end: int) -> Sequence[int | None]:
        return self._given[first:end]


class StagedEvents:
    """Events of a room that are read from a job's staging tables on demand."""

    def __init__(self, connection: Any, job: int, room_no: int, stream_ordering: int | None) -> None:
        """Reads the place in the input and the stream ordering of every event.

        If ``stream_ordering`` is not null, all events get this stream ordering in place of their own.
        """
        self._connection = connection
        self._kept, self._event = table_name(job, "kept"), table_name(job, STAGED_EVENTS.name)
        self._room_no, self._stream_ordering = room_no, stream_ordering
        self._places, self._given = array("q"), array("q")
        for place, given in self._stream(f"SELECT seq, stream_ordering FROM {self._kept} WHERE room_no = %s {_ORDER}"):
            self._places.append(place)
            self._given.append(given or _NOT_GIVEN)  # an array of integers holds no null
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT room_id, room_version FROM {self._kept} WHERE room_no = %s LIMIT 1", [room_no])
            room_id, version = cursor.fetchone()
        self.room_id: str = room_id
        self.version: RoomVersion = room_version(version)

    def __len__(self) -> int:
        return len(self._places)

    def check(self) -> None:
        """Does nothing, because the plan of the import has selected the room's events by room ID and room version."""

    def places(self, first: int, end: int) -> Sequence[int]:
        return self._places[first:end]

    def given_orderings(self, first: int, end: int) -> Sequence[int | None]:
        return [given or None for given in self._given[first:end]]

    def event_ids(self) -> Iterable[str]:
        sql = f"SELECT event_id FROM {self._kept} WHERE room_no = %s {_ORDER}"
        return (event_id for (event_id,) in self._stream(sql))

    def creations(self) -> Iterator[ParsedEvent]:
        sql = f"SELECT seq FROM {self._kept} WHERE room_no = %s AND type = 'm.room.create' {_ORDER}"
        for places in _some([place for (place,) in self._stream(sql)]):
            yield from self._fetch(places)

    def fetch(self, numbers: Sequence[int]) -> Sequence[ParsedEvent]:
        return [event for places in _some([self._places[n] for n in numbers]) for event in self._fetch(places)]

    def names(self, numbers: Sequence[int]) -> Sequence[str]:
        found: dict[int, str] = {}
        places = [self._places[number] for number in numbers]
        for some in _some(places):
            found.update(self._rows(f"SELECT seq, event_id FROM {self._event} WHERE seq = ANY(%s)", some))
        return [found[place] for place in places]

    def _fetch(self, places: Sequence[int]) -> Iterator[ParsedEvent]:
        """Yields the events whose places in the input are ``places``, in the same order."""
        sql = f"SELECT seq, stream_ordering, packed FROM {self._event} WHERE seq = ANY(%s)"
        rows = {place: (given, packed) for place, given, packed in self._rows(sql, places)}
        unpack, everywhere = Unpacker(self.room_id).unpack, self._stream_ordering
        for place in places:
            given, packed = rows[place]
            yield unpack(packed, given if everywhere is None else everywhere)

    def _rows(self, sql: str, places: Sequence[int]) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, [list(places)])
            found: list[Any] = cursor.fetchall()
            return found

    def _stream(self, sql: str) -> Iterator[Any]:
        with self._connection.cursor() as setting, self._connection.cursor(name="room") as cursor:
            setting.execute(ROOMY)
            cursor.itersize = _ROWS_PER_FETCH
            cursor.execute(sql, [self._room_no])
            yield from cursor


def _some(places: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(places), _ROWS_PER_FETCH):
        yield places[start : start + _ROWS_PER_FETCH]
