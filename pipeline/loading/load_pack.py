"""Loads one pack of rooms into the tables, in one transaction with its rows in the ledger.

Rows are copied straight into the site's tables. The task first copies the rows that contain neither a stream ID nor the
ID of a state group. Then it requests stream IDs, and copies the other rows. From this request on, linear readers wait
for the end of the transaction. So the task sends the request as late as possible. The task follows the rules in the
docstring of ``streams.writing.reserve_for``.

The row of a room in ``events_room`` acts as a lock. Example: Spark runs the task for a pack twice, as A and B. B tries
to insert the same row and waits until A has committed. Then B finds the room in the ledger. So a room is stored once,
however often its pack is loaded.

If the writer has another lease when the IDs arrive, the IDs cannot be used. Then the task rolls back and loads its pack
again.

Runs in Spark's executors, without Django.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from events.columns import INSERT_INTO
from pipeline.connections import connect
from pipeline.errors import LoadRefused, PackIncomplete
from pipeline.frames.schemas import ROOM_FRAMES
from pipeline.loading import requests
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
from streams.writing import append_lock

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LOADED", "LoadWork", "PackLoaded", "load_pack", "load_packs"]

LOADED = "rooms bigint, events bigint, left_out array<string>"
"""The columns of a task's result: how many rooms and events it loaded, and the rooms that it left out."""
_ANSWER_SECONDS = 0.01
_WRITER_SECONDS = 1.0
"""Seconds between two checks whether the session of the job's writer still exists."""
_AWAY_SECONDS = 60.0
"""If the job's process is gone for this number of seconds, a task fails."""
_TRIES = 20

#: Rooms are sorted by ID, so that two packs with the same rooms cannot deadlock.
_TAKE_ROOMS = f"""
{INSERT_INTO["events_room"]}
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::boolean[], %s::boolean[]) AS given (room_id)
ORDER BY room_id COLLATE "C" ON CONFLICT (room_id) DO NOTHING RETURNING room_id
"""
_LOADED_BEFORE = "SELECT room_id FROM pipeline_importedroom WHERE job_id = %s AND room_id = ANY(%s)"
#: One statement takes all IDs. They ascend, and may have gaps, because other sessions may take IDs in between.
_GROUP_IDS = """
SELECT array_agg(id ORDER BY id) FROM (
    SELECT nextval(pg_get_serial_sequence('state_stategroup', 'id')::regclass) AS id FROM generate_series(1, %s)
) AS taken
"""
_TRANSACTION = "SELECT pg_current_xact_id()::text::bigint, lease FROM streams_instance WHERE name = %s"
_HELD = f"SELECT {append_lock.HELD_HERE}"
_LEASE = "SELECT lease FROM streams_instance WHERE name = %s"
_DROP_CACHED = """
INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name, keys)
SELECT (given ->> 0)::bigint, %(writer)s, %(cache)s, ARRAY(SELECT jsonb_array_elements_text(given -> 1))
FROM jsonb_array_elements(%(given)s::jsonb) AS given
"""
_NOTE_ROOMS = """
INSERT INTO pipeline_importedroom (job_id, room_id, imported, rejected, unresolved)
SELECT %s, * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
"""


@dataclass(frozen=True, slots=True)
class LoadWork:
    """The parameters of loading, the same for all tasks of a job.

    ``writer`` is the name of the job's writer, and ``append_key`` the key of its append lock.
    """

    dsn: str = field(repr=False)
    job: int
    writer: str
    append_key: int


@dataclass(frozen=True, slots=True)
class PackLoaded:
    """The outcome of a pack: the numbers of rooms and events that the task loaded, and the IDs of rooms that it left out.

    A room is left out if another transaction has created the room, if the room is being purged, or if the room is
    blocked.
    """

    rooms: int
    events: int
    left_out: Sequence[str]


class _BeginAnew(Exception):
    """Raised if a transaction cannot use its stream IDs, because the writer's lease has ended.

    The caller then loads the pack again.
    """


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
                    pack.add(name, content.as_buffer())
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

    Raises ``LoadRefused`` if the job's process reserves no stream IDs. Raises ``PackIncomplete`` if rows of the pack
    are missing. Raises errors of the database driver.
    """
    with closing(_connect(work.dsn)) as connection, closing(_connect(work.dsn)) as talking:
        talking.autocommit = True
        for _ in range(_TRIES):
            _wait_for_writer(talking, work.writer)
            try:
                with connection, connection.cursor() as cursor:  # one transaction
                    done = _Loading(work, cursor, talking, pack, step).load()
                step("committed")
                return done
            except _BeginAnew:
                pack.without = ()
    raise LoadRefused(f"The writer {work.writer} of job {work.job} lost its lease {_TRIES} times. Run the job again.")


def _connect(dsn: str) -> Any:
    connection = connect(dsn, "replsite spark load")
    # With one snapshot for the whole transaction, a second read of the lease would return the old value.
    connection.set_session(isolation_level="READ COMMITTED")
    return connection


def _wait_for_writer(connection: Any, writer: str) -> None:
    """Waits until the job's writer answers requests. Raises ``LoadRefused`` if it does not for a minute."""
    deadline = time.monotonic() + _AWAY_SECONDS
    while not _writer(connection, writer)[1]:
        if time.monotonic() > deadline:
            raise LoadRefused(f"The writer {writer}, the job's process, is gone. Run the job again.")
        time.sleep(_WRITER_SECONDS)


def _writer(connection: Any, writer: str) -> tuple[int, bool]:
    """Returns (the writer's lease, true if the writer answers requests)."""
    with connection.cursor() as cursor:
        cursor.execute(requests.WRITER, [writer])
        lease, lives = cursor.fetchone() or (0, False)
    return lease, lives


class _Loading:
    """One transaction that loads a pack.

    ``cursor`` is a cursor in the transaction. ``talking`` is a second connection, for requests. Its statements commit
    at once.
    """

    def __init__(self, work: LoadWork, cursor: Any, talking: Any, pack: Pack, step: Callable[[str], None]) -> None:
        self._work, self._cursor, self._talking, self._pack, self._step = work, cursor, talking, pack, step

    def load(self) -> PackLoaded:
        self._cursor.execute(NO_LIMITS)
        taken, left_out = self._take_rooms()
        if not taken:
            return PackLoaded(0, 0, left_out)
        positions = Positions(self._pack)
        if positions.by_room.keys() != taken:
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
        self._cursor.execute(_NOTE_ROOMS, [self._work.job, *map(list, zip(*counts, strict=True))])
        self._step("noted")
        return PackLoaded(len(counts), positions.numbered.count, left_out)

    # --- rooms --------------------------------------------------------------------------------------------------------

    def _take_rooms(self) -> tuple[set[str], list[str]]:
        """Inserts the rows of the rooms. Returns (IDs of the inserted rooms, IDs of the rooms that are left out).

        Rooms that were not inserted are removed from the pack. If this job has loaded such a room before, the room is
        in neither of the two results.
        """
        rooms = self._pack.rooms()
        if not rooms:
            raise PackIncomplete("A pack has no rooms. Nothing of it was loaded.")
        self._cursor.execute(_TAKE_ROOMS, [list(column) for column in zip(*rooms, strict=True)])
        taken = {room_id for (room_id,) in self._cursor.fetchall()}
        lost = [str(room[0]) for room in rooms if room[0] not in taken]
        if not lost:
            return taken, []
        # This has to be a new statement. The insert may have waited for another transaction, whose rows only a statement
        # that begins after its commit can see.
        self._cursor.execute(_LOADED_BEFORE, [self._work.job, lost])
        before = {room_id for (room_id,) in self._cursor.fetchall()}
        self._pack.without = lost
        return taken, [room_id for room_id in lost if room_id not in before]

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
        """Requests stream IDs. Returns stream -> IDs in ascending order. Raises ``_BeginAnew`` if the lease has ended."""
        number, lease = self._take_lock()
        self._step("locked")
        needed = {stream: count for stream, count in counts.items() if count}
        asked = {"transaction": number, "job": self._work.job, "writer": self._work.writer, "lease": lease}
        with self._talking.cursor() as cursor:
            cursor.execute(requests.ASK, {**asked, "counts": json.dumps(needed)})
        self._step("asked")
        given = self._answer(number, lease)
        self._step("answered")
        # The lease is read again, in a statement that began after the lock was granted and the IDs were taken. Example:
        # A, the writer, is fenced and does not know it yet. B raises A's lease, and finds the append lock free. This
        # transaction takes the lock, and A gives it IDs. B may have passed these already. Here the new lease is seen.
        self._cursor.execute(_LEASE, [self._work.writer])
        if self._cursor.fetchone() != (lease,):
            raise _BeginAnew
        return {stream: given.get(stream, []) for stream in counts}

    def _take_lock(self) -> tuple[int, int]:
        """Takes the append lock in shared mode. Returns (number of this transaction, the writer's lease)."""
        for take in (append_lock.TAKE, append_lock.TAKE_ANOTHER):
            self._cursor.execute(take, {"key": self._work.append_key})
            self._cursor.execute(_HELD)
            if self._cursor.fetchone()[0]:
                break
        self._cursor.execute(_TRANSACTION, [self._work.writer])
        row = self._cursor.fetchone()
        if row is None:
            raise _BeginAnew
        return int(row[0]), int(row[1])

    def _answer(self, number: int, lease: int) -> dict[str, list[int]]:
        """Waits for the answer of the job's process. Returns stream -> IDs. Raises ``LoadRefused`` and ``_BeginAnew``."""
        look = time.monotonic() + _WRITER_SECONDS
        while True:
            with self._talking.cursor() as cursor:
                cursor.execute(requests.READ_ANSWER, [number, self._work.job])
                row = cursor.fetchone()
            if row is None:
                raise LoadRefused(f"Job {self._work.job} has ended, so its tasks get no IDs any more.")
            ids, refused = row
            if refused is not None:
                raise LoadRefused(refused)
            if ids is not None:
                return requests.ids_of_runs(ids)
            if time.monotonic() > look:
                # A writer that was fenced, or has just started, answers only when no transaction holds the append lock, and
                # this one holds it. So waiting for its answer, or for that of a writer that is gone, would never end.
                if _writer(self._talking, self._work.writer) != (lease, True):
                    raise _BeginAnew
                look = time.monotonic() + _WRITER_SECONDS
            time.sleep(_ANSWER_SECONDS)
