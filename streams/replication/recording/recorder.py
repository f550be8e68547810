"""The recorder of a foreign server: stores rows, positions and gaps, each batch in one transaction.

The stored rows and positions of one server are its *record*, and have a name. A position is stored in the transaction
of the rows that it covers. So every row is stored exactly once, and after a crash the recording continues after the
last stored row. Positions never decrease. If a writer starts again at a lower token, a new *life* of the writer begins,
with a separate position. Only one process records under a name, and it holds an advisory lock on the name. All calls
block, and only one thread may call at a time.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from streams.core.json_codec import encode_json
from streams.db import driver
from streams.db.lock_holders import describe_lock_holder
from streams.errors import StreamError
from streams.replication.protocol.cursors import MissingRange, Reset
from streams.replication.protocol.ordering import FollowedRow
from streams.runtime.logs import get_logger

log = get_logger(__name__)

TRIM_ROWS = 10_000

_SERVER = """
INSERT INTO streams_recordedserver (name, server_name, address, command, host, process_id)
VALUES (%(name)s, %(server_name)s, %(address)s, %(command)s, %(host)s, %(process_id)s)
ON CONFLICT (name) DO UPDATE SET address = excluded.address, command = excluded.command, host = excluded.host,
    process_id = excluded.process_id, started_at = clock_timestamp(), heartbeat_at = clock_timestamp(), ended_at = NULL
RETURNING id
"""
_POSITIONS = """
SELECT stream, instance_name, life, position FROM streams_recordedposition
WHERE server_id = %(server)s::bigint AND is_current
"""
_FACTS = """
INSERT INTO streams_recordedfact (server_id, stream, writer, token, index, row)
SELECT %(server)s::bigint, stream, writer, token, index, row
FROM unnest(%(streams)s::text[], %(writers)s::text[], %(tokens)s::bigint[], %(indexes)s::int[], %(rows)s::text[])
    AS given (stream, writer, token, index, row)
ON CONFLICT DO NOTHING
"""
#: Stores writers' positions. A writer's earlier life ends when a later one begins, even in the same batch.
_MOVE = """
WITH given AS (
    SELECT * FROM unnest(%(streams)s::text[], %(writers)s::text[], %(instances)s::text[], %(lives)s::int[],
        %(positions)s::bigint[], %(last_facts)s::bigint[], %(rows)s::bigint[], %(missed)s::bigint[])
        AS one (stream, writer, instance_name, life, position, last_fact, rows, missed)
), ended AS (
    UPDATE streams_recordedposition known SET is_current = false FROM given
    WHERE known.server_id = %(server)s::bigint AND known.stream = given.stream AND known.instance_name = given.instance_name
        AND known.life < given.life AND known.is_current
)
INSERT INTO streams_recordedposition AS known (server_id, stream, writer, instance_name, life, position, last_fact_position,
    last_fact_at, rows_recorded, ranges_missed, is_current)
SELECT %(server)s::bigint, stream, writer, instance_name, life, position, last_fact,
    CASE WHEN last_fact IS NOT NULL THEN clock_timestamp() END, rows, missed,
    life = max(life) OVER (PARTITION BY stream, instance_name) FROM given
ON CONFLICT (server_id, stream, writer) DO UPDATE SET
    last_advance_at = CASE WHEN excluded.position > known.position THEN clock_timestamp() ELSE known.last_advance_at END,
    position = greatest(known.position, excluded.position),
    last_fact_position = coalesce(excluded.last_fact_position, known.last_fact_position),
    last_fact_at = coalesce(excluded.last_fact_at, known.last_fact_at),
    rows_recorded = known.rows_recorded + excluded.rows_recorded,
    ranges_missed = known.ranges_missed + excluded.ranges_missed
"""
_GAPS = """
INSERT INTO streams_recordedgap (server_id, stream, writer, after, upto, reason)
SELECT %(server)s::bigint, * FROM unnest(%(streams)s::text[], %(writers)s::text[], %(afters)s::bigint[], %(uptos)s::bigint[],
    %(reasons)s::text[])
"""
_BEAT = "UPDATE streams_recordedserver SET heartbeat_at = clock_timestamp() WHERE id = %(server)s::bigint"
_END = """
UPDATE streams_recordedserver SET ended_at = clock_timestamp(), heartbeat_at = clock_timestamp() WHERE id = %(server)s::bigint
"""
#: Removes the oldest rows of all records that are too old or too many. IDs ascend with time.
_TRIM = """
WITH oldest AS (SELECT id, received_at FROM streams_recordedfact ORDER BY id LIMIT %(rows)s::bigint), gone AS (
    DELETE FROM streams_recordedfact WHERE id IN (
        SELECT id FROM oldest WHERE received_at < clock_timestamp() - %(seconds)s::float8 * interval '1 second'
            OR id <= (SELECT max(id) FROM streams_recordedfact) - %(kept)s::bigint
    ) RETURNING server_id, stream, writer, token
), upto AS (SELECT server_id, stream, writer, max(token) AS token, count(*) AS rows FROM gone GROUP BY 1, 2, 3), marked AS (
    UPDATE streams_recordedposition known SET trimmed_upto = greatest(known.trimmed_upto, upto.token) FROM upto
    WHERE known.server_id = upto.server_id AND known.stream = upto.stream AND known.writer = upto.writer
)
SELECT coalesce(sum(rows), 0) FROM upto
"""
_TRIM_GAPS = (
    "DELETE FROM streams_recordedgap WHERE recorded_at < clock_timestamp() - %(seconds)s::float8 * interval '1 second'"
)


#: The end of the name of a later life.
_LIKE_LIFE = re.compile(r"~\d+\Z")


class RecorderBusy(StreamError):
    """The error if a record's name cannot be used.

    Another process records under this name, or the record with this name is of another server.
    """


@dataclass(slots=True)
class _Life:
    """The present life of a writer: its number and position. A new life begins if the writer starts again at a lower token."""

    number: int = 1
    position: int = 0


@dataclass(slots=True)
class _Change:
    """The change of one life of a writer by a batch: its new position, its last fact, and numbers of rows and missed ranges."""

    position: int = 0
    last_fact: int | None = None
    rows: int = 0
    missed: int = 0


@dataclass(slots=True)
class Batch:
    """The data that one transaction stores: restarts of writers, rows in order of arrival, gaps, and positions.

    ``gaps`` has pairs (range, reason why the range could not be fetched). ``positions`` is ``{stream: {writer:
    position}}``.
    """

    resets: Sequence[Reset] = ()
    rows: Sequence[FollowedRow] = ()
    gaps: Sequence[tuple[MissingRange, str]] = ()
    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Recorder:
    """The object that writes one foreign server's record. The caller must first call `open`.

    ``command`` has the words after ``manage.py`` that continue the record, if these are not those of ``follow``.
    """

    def __init__(self, name: str, server_name: str, address: str, using: str, command: str = "") -> None:
        self._about = {"name": name, "server_name": server_name, "address": address, "command": command}
        self._connection = driver.KeptConnection(using, f"replsite record {name}")
        self._server = 0
        self._lives: dict[tuple[str, str], _Life] = {}

    def open(self) -> dict[str, dict[str, int]]:
        """Locks the record's name. Returns the positions to continue from, as ``{stream: {writer: position}}``.

        Raises `RecorderBusy` if another process records under the name, or if the name is the record of another server.
        """
        name = self._about["name"]
        with self._connection.cursor() as cursor:
            key = driver.recorder_key(cursor, name)
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
            if not cursor.fetchone()[0]:
                cursor.execute("SELECT host, process_id FROM streams_recordedserver WHERE name = %s", [name])
                host, process_id = cursor.fetchone() or ("?", "?")
                raise RecorderBusy(
                    f"{name!r} is recorded by process {process_id} on {host}{describe_lock_holder(cursor, key)} already: stop "
                    f"that, or take another name."
                )
            about = {**self._about, "host": socket.gethostname(), "process_id": os.getpid()}
            cursor.execute("SELECT server_name FROM streams_recordedserver WHERE name = %s", [name])
            if (row := cursor.fetchone()) is not None and row[0] != self._about["server_name"]:
                self._connection.close()  # and with it the lock
                raise RecorderBusy(
                    f"{name!r} is the record of {row[0]!r}, not of {self._about['server_name']!r}: take another name."
                )
            cursor.execute(_SERVER, about)
            (self._server,) = cursor.fetchone()
            cursor.execute(_POSITIONS, {"server": self._server})
            self._lives = {(stream, writer): _Life(life, at) for stream, writer, life, at in cursor.fetchall()}
        known: dict[str, dict[str, int]] = {}
        for (stream, writer), life in self._lives.items():
            known.setdefault(stream, {})[writer] = life.position
        return known

    def store(self, batch: Batch) -> None:
        """Stores a batch in one transaction.

        Raises ``DatabaseError``, after which the caller may store the same batch again. Raises `RecorderBusy` if
        another process took over the record's name.
        """
        lives = {key: _Life(life.number, life.position) for key, life in self._lives.items()}
        facts, changes = _plan(lives, batch)
        with self._transaction() as cursor:
            if facts:
                cursor.execute(_FACTS, {"server": self._server, **_columns(facts, _FACT_COLUMNS)})
            self._store_gaps(cursor, lives, batch.gaps)
            if changes:
                rows = [
                    _moved(stream, instance, number, change) for (stream, instance, number), change in changes.items()
                ]
                cursor.execute(_MOVE, {"server": self._server, **_columns(rows, _MOVE_COLUMNS)})
            cursor.execute(_BEAT, {"server": self._server})
        self._lives = lives  # only after the commit, so that a failed batch can be planned again

    @contextmanager
    def _transaction(self) -> Any:
        """Opens a transaction in the database session that holds the lock on the record's name. Yields its cursor.

        After a reconnection, first takes the lock again. Raises `RecorderBusy` if another process has the lock.
        """
        with self._connection.cursor() as cursor:
            # PostgreSQL counts how often a session takes a lock. If the session holds the lock already, the call succeeds
            # again. On a new session, the call shows if another process took the name meanwhile.
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [driver.recorder_key(cursor, self._about["name"])])
            if not cursor.fetchone()[0]:
                raise RecorderBusy(f"Another process took over the record {self._about['name']!r}.")
            with driver.in_transaction(cursor):
                yield cursor

    def _store_gaps(
        self, cursor: Any, lives: Mapping[tuple[str, str], _Life], gaps: Iterable[tuple[MissingRange, str]]
    ) -> None:
        rows = [
            (
                gap.stream,
                _writer_key(gap.instance, _life_of(lives, gap.stream, gap.instance)),
                gap.after,
                gap.upto,
                reason,
            )
            for gap, reason in gaps
        ]
        if rows:
            columns = _columns(rows, ("streams", "writers", "afters", "uptos", "reasons"))
            cursor.execute(_GAPS, {"server": self._server, **columns})

    def trim(self, days: float, facts_kept: int) -> int:
        """Deletes up to ``TRIM_ROWS`` of the oldest recorded rows, and returns the number of deleted rows.

        Deletes rows older than ``days``, and rows that are not among the newest ``facts_kept`` rows of all servers
        together. Also deletes gaps older than ``days``.
        """
        limits = {"rows": TRIM_ROWS, "seconds": days * 86_400, "kept": facts_kept}
        with self._connection.cursor() as cursor:
            cursor.execute(_TRIM, limits)
            removed = int(cursor.fetchone()[0])
            cursor.execute(_TRIM_GAPS, limits)
        return removed

    def close(self, *, in_order: bool = True) -> None:
        """Closes the database connection. If ``in_order`` is true, first stores that the recording has ended.

        Does not store it if another process took over the record's name.
        """
        if in_order and self._server:
            try:
                with self._transaction() as cursor:
                    cursor.execute(_END, {"server": self._server})
            except (driver.DatabaseError, RecorderBusy) as error:
                log.info("recorder.end_not_stored", error=str(error).strip())
        self._connection.close()


_FACT_COLUMNS = ("streams", "writers", "tokens", "indexes", "rows")
_MOVE_COLUMNS = ("streams", "writers", "instances", "lives", "positions", "last_facts", "rows", "missed")
_Changes = dict[tuple[str, str, int], _Change]


def _plan(lives: dict[tuple[str, str], _Life], batch: Batch) -> tuple[list[tuple[Any, ...]], _Changes]:
    """Returns (rows to insert, changes of writers) for a batch. Updates ``lives``.

    The changes are ``{(stream, writer, number of the writer's life): change}``.
    """
    changes: _Changes = {}
    for reset in batch.resets:
        _begin_life(lives, changes, reset)
    facts: list[tuple[Any, ...]] = []
    last: tuple[str, str, int] | None = None
    index = 0
    for row in batch.rows:
        key = (row.stream, row.instance, row.token)
        index = index + 1 if key == last else 0
        last = key
        life = lives.setdefault((row.stream, row.instance), _Life())
        life.position = max(life.position, row.token)
        change = changes.setdefault((row.stream, row.instance, life.number), _Change())
        change.position, change.last_fact, change.rows = life.position, row.token, change.rows + 1
        text = encode_json(row.row).decode("ascii")
        facts.append((row.stream, _writer_key(row.instance, life), row.token, index, text))
    for stream, positions in batch.positions.items():
        for instance, position in positions.items():
            _settle(lives, changes, (stream, instance), position)
    for gap, _ in batch.gaps:
        life = _life_of(lives, gap.stream, gap.instance)
        change = changes.setdefault((gap.stream, gap.instance, life.number), _Change(life.position))
        change.missed += 1
    return facts, changes


def _begin_life(lives: dict[tuple[str, str], _Life], changes: _Changes, reset: Reset) -> None:
    key = (reset.stream, reset.instance)
    former = lives.get(key)
    life = lives[key] = _Life(1 if former is None else former.number + 1, reset.token)
    changes[(*key, life.number)] = _Change(life.position)


def _settle(lives: dict[tuple[str, str], _Life], changes: _Changes, key: tuple[str, str], position: int) -> None:
    # The follower may report an older position.
    life = lives.get(key)
    if life is None:
        life = lives[key] = _Life()
    elif position <= life.position:
        return
    life.position = position
    changes.setdefault((*key, life.number), _Change()).position = position


def _life_of(lives: Mapping[tuple[str, str], _Life], stream: str, instance: str) -> _Life:
    return lives.get((stream, instance), _Life())


def _writer_key(instance: str, life: _Life) -> str:
    # Otherwise the second life of writer ``a`` and the first life of a writer with the name ``a~2`` would have the same
    # row. No batch with both writers could be stored.
    return instance if life.number == 1 and not _LIKE_LIFE.search(instance) else f"{instance}~{life.number}"


def _moved(stream: str, instance: str, number: int, change: _Change) -> tuple[Any, ...]:
    writer = _writer_key(instance, _Life(number))
    return stream, writer, instance, number, change.position, change.last_fact, change.rows, change.missed


def _columns(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> dict[str, list[Any]]:
    columns = zip(names, zip(*rows, strict=True), strict=True)
    # PostgreSQL does not store NUL, and a hostile server may put NUL into names.
    return {name: [v.replace("\0", "\ufffd") if isinstance(v, str) else v for v in values] for name, values in columns}
