"""Loads one pack of rooms into the tables, in one transaction with its rows in the ledger.

Rows are copied straight into the site's tables. The task first copies the rows that contain neither a stream ID nor the
ID of a state group. Then it holds the streams and takes stream IDs, and copies the other rows. From then on, linear readers
wait for the end of the transaction. So the task takes the IDs as late as possible.

The row of a room in ``events_room`` acts as a lock. Example: Spark runs the task for a pack twice, as A and B. B tries
to insert the same row and waits until A has committed. Then B finds the room in the ledger. So a room is stored once,
however often its pack is loaded.

Runs in Spark's executors, without Django.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from events.declarations import BACKFILL, EVENTS
from events.rows import INSERT_ROOMS
from pipeline.connections import connect
from pipeline.errors import PackIncomplete
from pipeline.frames.schemas import ROOM_FRAMES
from pipeline.loading.copy_rows import copy_batches
from pipeline.loading.pack_rows import (
    COPIED_BEFORE_IDS,
    COPIED_WITH_IDS,
    Numbered,
    Pack,
    Positions,
    state_groups,
    table_rows,
)
from streams.catalog.declarations import CACHES
from streams.core.invalidation import ROOM_STATE, room_state_keys
from streams.db.long_transactions import NO_LIMITS
from streams.holds.hold import WRITE_AS, hold_sql

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LOADED", "LoadWork", "PackLoaded", "load_in", "load_pack", "load_packs", "pack_transaction"]

LOADED = "rooms bigint, events bigint, left_out array<string>"
"""The columns of a task's result: how many rooms and events it loaded, and the rooms that it left out."""

_LOADED_BEFORE = "SELECT room_id FROM pipeline_importedroom WHERE job_id = %s AND room_id = ANY(%s)"
#: One statement takes all IDs. They ascend, and may have gaps, because other sessions may take IDs in between.
_GROUP_IDS = """
SELECT array_agg(id ORDER BY id) FROM (
    SELECT nextval(pg_get_serial_sequence('state_stategroup', 'id')::regclass) AS id FROM generate_series(1, %s)
) AS taken
"""
_HOLD = {stream.name: hold_sql(stream) for stream in (EVENTS, BACKFILL, CACHES)}
_STREAM_IDS = {
    stream.name: f"SELECT ARRAY(SELECT nextval('{stream.sequence}') FROM generate_series(1, %s))"
    for stream in (EVENTS, BACKFILL, CACHES)
}
_DROP_CACHED = """
INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name, keys)
SELECT (given ->> 0)::bigint, %(writer)s, %(cache)s, ARRAY(SELECT jsonb_array_elements_text(given -> 1))
FROM jsonb_array_elements(%(given)s::jsonb) AS given
"""
_RECORD_ROOMS = """
INSERT INTO pipeline_importedroom (job_id, room_id, imported, rejected, unresolved)
SELECT %s, * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
"""


@dataclass(frozen=True, slots=True)
class LoadWork:
    """The parameters of loading, the same for all tasks of a job. ``writer`` is the writer of the facts."""

    dsn: str = field(repr=False)
    job: int
    writer: str


@dataclass(frozen=True, slots=True)
class PackLoaded:
    """The outcome of a pack: the numbers of rooms and events that the task loaded, and the IDs of rooms that it left out.

    A room is left out if another transaction has created the room, if the room is being purged, or if the room is
    blocked.
    """

    rooms: int
    events: int
    left_out: Sequence[str]


def load_packs(work: LoadWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Loads the pack of a Spark task. ``batches`` has the pack's bundles. Yields one row with the outcome.

    Yields nothing if the task has no pack.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only

    with closing(Pack()) as pack:
        numbers: set[int] = set()
        for batch in batches:
            names, packs = batch.column("frame").to_pylist(), batch.column("pack").to_pylist()
            for name, number, content in zip(names, packs, batch.column("content"), strict=True):
                if name in ROOM_FRAMES:  # events that are set aside come in bundles, too
                    numbers.add(number)
                    pack.add(name, pa.ipc.read_record_batch(content.as_buffer(), ROOM_FRAMES[name].arrow()))
        if len(numbers) > 1:
            raise PackIncomplete("A task got bundles of several packs. Nothing of them was loaded.")
        if numbers:
            done = load_pack(work, pack)
            types = {"rooms": pa.int64(), "events": pa.int64(), "left_out": pa.list_(pa.string())}
            columns = [[done.rooms], [done.events], [list(done.left_out)]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(values, kind) for values, kind in zip(columns, types.values(), strict=True)],
                names=list(types),
            )


def load_pack(work: LoadWork, pack: Pack, step: Callable[[str], None] = lambda name: None) -> PackLoaded:
    """Loads a pack. Returns the outcome. The outcome does not count rooms that an earlier call has loaded.

    ``step`` is called with the name of each finished step. Tests use ``step`` to end the process after a step.

    Raises ``PackIncomplete`` if rows of the pack are missing, and errors of the database driver.
    """
    with pack_transaction(work.dsn) as cursor:
        done = load_in(cursor, work, pack, step)
    step("committed")
    return done


@contextmanager
def pack_transaction(dsn: str) -> Iterator[Any]:
    """Yields a cursor in a transaction in which ``load_in`` can load a pack. The transaction commits at the end of the block."""
    with closing(connect(dsn, "replsite spark load")) as connection:
        # ``_LOADED_BEFORE`` has to see what was committed while an earlier statement waited.
        connection.set_session(isolation_level="READ COMMITTED")
        with connection, connection.cursor() as cursor:
            cursor.execute(NO_LIMITS)
            yield cursor


def load_in(cursor: Any, work: LoadWork, pack: Pack, step: Callable[[str], None] = lambda name: None) -> PackLoaded:
    """Loads a pack in the open transaction of ``pack_transaction``, otherwise as ``load_pack``."""
    return _Loading(work, cursor, pack, step).load()


class _Loading:
    """One transaction that loads a pack. ``cursor`` is a cursor in the transaction."""

    def __init__(self, work: LoadWork, cursor: Any, pack: Pack, step: Callable[[str], None]) -> None:
        self._work, self._cursor, self._pack, self._step = work, cursor, pack, step

    def load(self) -> PackLoaded:
        inserted, left_out = self._insert_rooms()
        if not inserted:
            return PackLoaded(0, 0, left_out)
        positions = Positions(self._pack)
        if positions.by_room.keys() != inserted:
            raise PackIncomplete("A pack has not all events of its rooms. Nothing of the pack was loaded.")
        self._step("rooms")
        groups = state_groups(self._pack)
        self._give_groups(groups)
        for frame, key in COPIED_BEFORE_IDS.items():
            self._copy(frame, self._pack.sorted_batches(frame, key), positions.numbered, groups)
        self._step("copied")
        dropped = [
            keys for room_id, users in sorted(self._pack.members().items()) for keys in room_state_keys(room_id, users)
        ]
        ids = self._stream_ids({**positions.counts, CACHES.name: len(dropped)})
        positions.give(ids)
        for frame in COPIED_WITH_IDS:
            self._copy(frame, self._pack.batches(frame), positions.numbered, groups)
        given = [[number, keys] for number, keys in zip(ids[CACHES.name], dropped, strict=True)]
        values = {"writer": self._work.writer, "cache": ROOM_STATE, "given": json.dumps(given)}
        self._cursor.execute(_DROP_CACHED, values)
        counts = [(room_id, *rest) for room_id, rest in positions.by_room.items()]
        self._cursor.execute(_RECORD_ROOMS, [self._work.job, *map(list, zip(*counts, strict=True))])
        self._step("noted")
        return PackLoaded(len(counts), positions.numbered.count, left_out)

    # --- rooms --------------------------------------------------------------------------------------------------------

    def _insert_rooms(self) -> tuple[set[str], list[str]]:
        """Inserts the rows of the rooms. Returns (IDs of the inserted rooms, IDs of the rooms that are left out).

        Rooms that were not inserted are removed from the pack. If this job has loaded such a room before, the room is
        in neither of the two results.
        """
        rooms = self._pack.rooms()
        if not rooms:
            raise PackIncomplete("A pack has no rooms. Nothing of it was loaded.")
        self._cursor.execute(INSERT_ROOMS, [list(column) for column in zip(*rooms, strict=True)])
        inserted = {room_id for (room_id,) in self._cursor.fetchall()}
        lost = [str(room[0]) for room in rooms if room[0] not in inserted]
        if not lost:
            return inserted, []
        # This has to be a new statement. The insert may have waited for another transaction, whose rows only a statement
        # that begins after its commit can see.
        self._cursor.execute(_LOADED_BEFORE, [self._work.job, lost])
        before = {room_id for (room_id,) in self._cursor.fetchall()}
        self._pack.without = lost
        return inserted, [room_id for room_id in lost if room_id not in before]

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _copy(self, frame: str, batches: Iterable[pa.RecordBatch], positions: Numbered, groups: Numbered) -> None:
        table = str(ROOM_FRAMES[frame].table)
        to_rows = partial(table_rows, frame, writer=self._work.writer, positions=positions, groups=groups)
        copy_batches(self._cursor, table, (to_rows(batch) for batch in batches if batch.num_rows))
        self._step(f"copied {frame}")

    def _give_groups(self, groups: Numbered) -> None:
        import pyarrow as pa  # noqa: PLC0415 - executors only

        self._cursor.execute(_GROUP_IDS, [groups.count])
        groups.give(pa.array(self._cursor.fetchone()[0] or [], pa.int64()))

    # --- stream IDs ---------------------------------------------------------------------------------------------------

    def _stream_ids(self, counts: Mapping[str, int]) -> dict[str, list[int]]:
        """Holds the streams, and takes stream IDs. Returns stream -> IDs in ascending order."""
        self._cursor.execute(f"SELECT {WRITE_AS}", {"writer": self._work.writer})
        ids: dict[str, list[int]] = {}
        for stream, count in counts.items():
            if count:
                self._cursor.execute(_HOLD[stream])
            self._cursor.execute(_STREAM_IDS[stream], [count])
            ids[stream] = self._cursor.fetchone()[0]
        self._step("taken")
        return ids
