"""Loads the rooms of an import: copies rows from the staging tables into the site's tables, in batches.

Each batch of rooms is one transaction. A room becomes visible as a whole, together with its row in ``ImportedRoom``. If
the process is killed, each room is either loaded and recorded, or not loaded at all.

Stream IDs ascend over all events of a batch in the order of the stream orderings that the source gives. Events without
a stream ordering come last, in the order of the lines. On the stream ``backfill``, the newest event gets the lowest ID.
The stream ordering of a backfilled event is its negative ID, so stream orderings ascend from the oldest event to the
newest.

Runs in Spark's driver, and needs Django.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from events.columns import INSERT_INTO
from events.declarations import BACKFILL, EVENTS
from pipeline.importing.staging_tables import OWN_COLUMNS, ROOMY, table_name
from streams import registry
from streams.caches import invalidate_room_states
from streams.db.consistent_read import long_transaction
from streams.writing.reservation import reserve_ids

__all__ = ["EVENTS_PER_BATCH", "LoadedRoom", "batches", "load_batch", "ready_rooms"]

EVENTS_PER_BATCH = 20_000
"""The largest number of events of a batch. A larger room is a batch of its own."""
_OWN = [name for name in OWN_COLUMNS if name != "state_group"]


def _of_batch(table: str = "") -> str:
    """Returns the SQL condition for rows of the batch's rooms. ``table`` is the table's name or alias in the query."""
    return f"{table}.room_no = ANY(%(rooms)s)" if table else "room_no = ANY(%(rooms)s)"


#: The inserted rows act as locks. A inserts room R, and B inserts R too: B waits until A ends, and gets no row back if
#: A committed. Rooms are sorted by ID, so that two batches with the same rooms cannot deadlock.
_TAKE_ROOMS = f"""
{INSERT_INTO["events_room"]}
SELECT room_id, room_version, creator, create_event_id, current_state_unresolved, visibility_unresolved
FROM {{result_room}} WHERE {_of_batch()} ORDER BY room_id
ON CONFLICT (room_id) DO NOTHING RETURNING room_id
"""
#: Rows that need no stream ID. They are inserted in the order of event IDs, so that the pages of an index are visited
#: one after the other: event IDs are hashes, and any other order would visit pages at random. The JSON is fetched event
#: by event. A plain join could read all staged events for every batch.
_PLAIN = (
    f"""
    {INSERT_INTO["events_eventjson"]}
    SELECT r.event_id, e.room_version, e.json FROM {{result_event}} r
    CROSS JOIN LATERAL (SELECT room_version, json FROM {{event}} staged WHERE staged.seq = r.seq OFFSET 0) e
    WHERE {_of_batch()}
    """,
    f"""
    {INSERT_INTO["events_eventedge"]}
    SELECT event_id, unnest(prev_event_ids) FROM {{result_event}} WHERE {_of_batch()} ORDER BY event_id
    """,
    f"""
    {INSERT_INTO["events_eventauth"]}
    SELECT event_id, auth_event_ids FROM {{result_event}} WHERE auth_event_ids IS NOT NULL AND {_of_batch()}
    ORDER BY event_id
    """,
    f"""
    {INSERT_INTO["events_forwardextremity"]}
    SELECT event_id, room_id
    FROM {{result_forward}} f JOIN {{result_room}} r USING (room_no) WHERE {_of_batch("f")} AND {_of_batch("r")}
    """,
    f"""
    {INSERT_INTO["events_backwardextremity"]}
    SELECT room_id, event_id
    FROM {{result_backward}} b JOIN {{result_room}} r USING (room_no) WHERE {_of_batch("b")} AND {_of_batch("r")}
    """,
    f"""
    {INSERT_INTO["events_currentstate"]}
    SELECT room_id, type, state_key, event_id, membership
    FROM {{result_current}} c JOIN {{result_room}} r USING (room_no) WHERE {_of_batch("c")} AND {_of_batch("r")}
    """,
)
#: IDs of state groups, from the table's own sequence, ascending in each room.
_MAP_GROUPS = f"""
CREATE TEMPORARY TABLE import_group ON COMMIT DROP AS
SELECT room_no, number, nextval((SELECT pg_get_serial_sequence('state_stategroup', 'id'))::regclass) AS id
FROM (SELECT room_no, number FROM {{result_group}} WHERE {_of_batch()} ORDER BY room_no, number) AS ordered
"""
#: The plans of the statements below must not depend on statistics of tables that have just been filled. With statistics from
#: small rooms PostgreSQL expects few rows of a large room, and picks a nested loop over all pairs of rows. So tables are joined
#: in the order written here, by hashes. Each one is first restricted to the batch.
_JOIN_AS_WRITTEN = "SET LOCAL join_collapse_limit = 1; SET LOCAL enable_nestloop = off"
#: Reset afterwards: other statements of the transaction, such as reserving IDs, read tables of the whole site.
_JOIN_AS_USUAL = "SET LOCAL join_collapse_limit TO DEFAULT; SET LOCAL enable_nestloop TO DEFAULT"
_GROUPS = (
    f"""
    {INSERT_INTO["state_stategroup"]}
    SELECT own.id, r.room_id, prev.id, chain.id, g.hops, g.keys, g.rows_to_read
    FROM {{result_group}} g JOIN {{result_room}} r USING (room_no)
    JOIN import_group own ON own.room_no = g.room_no AND own.number = g.number
    JOIN import_group chain ON chain.room_no = g.room_no AND chain.number = g.chain
    LEFT JOIN import_group prev ON prev.room_no = g.room_no AND prev.number = g.prev
    WHERE {_of_batch("g")} AND {_of_batch("r")}
    """,
    f"""
    {INSERT_INTO["state_stategroupdelta"]}
    SELECT chain.id, own.id, d.type, d.state_key, d.event_id
    FROM {{result_group_delta}} d
    JOIN import_group own ON own.room_no = d.room_no AND own.number = d.number
    JOIN import_group chain ON chain.room_no = d.room_no AND chain.number = d.chain
    WHERE {_of_batch("d")}
    """,
)
#: Assigns the reserved IDs to events as stream orderings, in one direction.
_MAP_EVENTS = f"""
INSERT INTO import_ordering (room_no, index, stream_ordering)
SELECT room_no, index, %(sign)s * ids.id
FROM (
    SELECT room_no, index, row_number() OVER (ORDER BY {{order}}) AS place
    FROM {{result_event}} WHERE {_of_batch()} AND backward = %(backward)s
) AS ordered
JOIN unnest(%(ids)s::bigint[]) WITH ORDINALITY AS ids(id, place) USING (place)
"""
#: Assigns reserved IDs to events if the IDs are consecutive, which is the usual case.
_MAP_EVENTS_IN_ONE = f"""
INSERT INTO import_ordering (room_no, index, stream_ordering)
SELECT room_no, index, %(sign)s * (%(first_id)s - 1 + row_number() OVER (ORDER BY {{order}}))
FROM {{result_event}} WHERE {_of_batch()} AND backward = %(backward)s
"""
_GIVEN_ORDER = {False: "given NULLS LAST, seq", True: "given DESC NULLS FIRST, seq DESC"}
_ORDERED = (
    f"""
    INSERT INTO events_event (stream_ordering, instance_name, room_id, {", ".join(_OWN)}, state_group)
    SELECT o.stream_ordering, %(writer)s, room.room_id, {", ".join(f"r.{name}" for name in _OWN)}, g.id
    FROM {{result_event}} r JOIN {{result_room}} room USING (room_no) JOIN import_ordering o USING (room_no, index)
    LEFT JOIN import_group g ON g.room_no = r.room_no AND g.number = r.state_group
    WHERE {_of_batch("r")} AND {_of_batch("room")}
    """,
    f"""
    INSERT INTO events_currentstatedelta (stream_ordering, instance_name, room_id, type, state_key, event_id, prev_event_id)
    SELECT o.stream_ordering, %(writer)s, r.room_id, d.type, d.state_key, d.event_id, d.prev_event_id
    FROM {{result_delta}} d JOIN import_ordering o USING (room_no, index) JOIN {{result_room}} r USING (room_no)
    WHERE {_of_batch("d")} AND {_of_batch("r")} ORDER BY o.stream_ordering
    """,
    f"""
    {INSERT_INTO["events_eventvisibility"]}
    SELECT r.room_id, v.user_id, v.kind, first.stream_ordering, last.stream_ordering
    FROM {{result_visibility}} v JOIN {{result_room}} r USING (room_no)
    JOIN import_ordering first ON first.room_no = v.room_no AND first.index = v.first
    LEFT JOIN import_ordering last ON last.room_no = v.room_no AND last.index = v.last
    WHERE {_of_batch("v")} AND {_of_batch("r")}
    """,
    f"""
    INSERT INTO pipeline_importedroom (job_id, room_id, imported, rejected, unresolved)
    SELECT %(job)s, room_id, events, rejected, unresolved FROM {{result_room}} WHERE {_of_batch()}
    """,
)
#: Timeline gaps at live events whose prev event is a backward extremity. There are few such events. The query reads
#: tables of the whole site, so it runs with the usual planner settings.
_GAPS = f"""
{INSERT_INTO["events_timelinegap"]}
SELECT DISTINCT r.room_id, min(e.stream_ordering), %(writer)s
FROM {{result_backward}} b JOIN {{result_room}} r USING (room_no)
JOIN events_eventedge edge ON edge.prev_event_id = b.event_id
JOIN events_event e ON e.event_id = edge.event_id AND e.room_id = r.room_id
WHERE {_of_batch("b")} AND {_of_batch("r")} AND e.stream_ordering > 0 GROUP BY r.room_id, b.event_id
"""


#: Rooms with a current state, and their members.
_MEMBERS = f"""
SELECT r.room_id, coalesce(array_agg(c.state_key) FILTER (WHERE c.type = 'm.room.member'), '{{{{}}}}')
FROM {{result_current}} c JOIN {{result_room}} r USING (room_no)
WHERE {_of_batch("c")} AND {_of_batch("r")} GROUP BY r.room_id ORDER BY r.room_id
"""


@dataclass(frozen=True, slots=True)
class LoadedRoom:
    """A room whose rows are staged. ``room_no`` is the room's number in the job.

    ``events`` is the number of events to load. ``backward`` of these events need IDs of the stream ``backfill``. The
    other events need IDs of the stream ``events``.
    """

    room_no: int
    room_id: str
    events: int
    backward: int


def batches(rooms: Iterable[LoadedRoom], events: int = EVENTS_PER_BATCH) -> Iterator[list[LoadedRoom]]:
    """Yields the rooms in their order, in batches of at most ``events`` events. A larger room is a batch of its own."""
    batch: list[LoadedRoom] = []
    size = 0
    for room in rooms:
        if batch and size + room.events > events:
            yield batch
            batch, size = [], 0
        batch.append(room)
        size += room.events
    if batch:
        yield batch


def ready_rooms(cursor: Any, job: int) -> list[LoadedRoom]:
    """Returns the rooms whose rows are staged and not loaded yet, in the order in which they are to be loaded."""
    # A room that contradicts itself has a row with 0 events: it is finished, and there is nothing to load.
    cursor.execute(
        f"SELECT room_no, room_id, events, backward FROM {table_name(job, 'result_room')} r WHERE events > 0 AND NOT EXISTS "
        "(SELECT FROM pipeline_importedroom done WHERE done.job_id = %s AND done.room_id = r.room_id) ORDER BY room_no",
        [job],
    )
    return [LoadedRoom(*row) for row in cursor.fetchall()]


def load_batch(job: int, rooms: Sequence[LoadedRoom], using: str) -> set[str]:
    """Loads a batch of rooms in one transaction. Returns the IDs of rooms that were left out.

    A room is left out if another transaction has created the room since the import was planned. A room that is being
    purged or is blocked is left out, too.
    """
    lost: set[str] = set()
    while rooms := [room for room in rooms if room.room_id not in lost]:
        with long_transaction(using) as cursor:
            batch = _Batch(cursor, job, rooms, using)
            taken = batch.take_rooms()
            if len(taken) == len(rooms):
                batch.load()
                break
            # Nothing of a lost room may be loaded. Roll back, and try again without the lost rooms.
            lost |= {room.room_id for room in rooms} - taken
            transaction.set_rollback(True, using=using)
    return lost


class _Batch:
    """A transaction that loads a batch of rooms."""

    def __init__(self, cursor: Any, job: int, rooms: Sequence[LoadedRoom], using: str) -> None:
        self._cursor = cursor
        self._using = using
        self._rooms = rooms
        self._names = {
            name: table_name(job, name)
            for name in (
                "event",
                *(f"result_{kind}" for kind in ["room", "event", "forward", "backward", "group", "group_delta"]),
                *(f"result_{kind}" for kind in ["current", "delta", "visibility"]),
            )
        }
        self._values = {"rooms": [room.room_no for room in rooms], "job": job}

    def take_rooms(self) -> set[str]:
        """Inserts a row in ``events_room`` for each room of the batch. Returns the IDs of the rooms that were inserted."""
        self._run(_TAKE_ROOMS)
        return {row[0] for row in self._cursor.fetchall()}

    def load(self) -> None:
        """Takes stream IDs for the events, and inserts the rows of the rooms in all tables except ``events_room``."""
        self._cursor.execute(ROOMY)
        for sql in (*_PLAIN, _MAP_GROUPS):
            self._run(sql)
        self._join(_GROUPS)
        self._cursor.execute(
            "CREATE TEMPORARY TABLE import_ordering (room_no bigint, index bigint, stream_ordering bigint) ON COMMIT DROP"
        )
        # IDs are taken late, after all rows that need none. From then to the commit, the linear position waits for this
        # transaction.
        old = sum(room.backward for room in self._rooms)
        live = sum(room.events for room in self._rooms) - old
        counts = [(registry.get(stream.name), count) for stream, count in ((EVENTS, live), (BACKFILL, old)) if count]
        writer, taken = reserve_ids(counts, self._using)
        for (stream, _), ids in zip(counts, taken, strict=True):
            backward = stream.declaration.backward
            in_one = ids[-1] - ids[0] == len(ids) - 1
            sql = (_MAP_EVENTS_IN_ONE if in_one else _MAP_EVENTS).replace("{order}", _GIVEN_ORDER[backward])
            ids_given = {"first_id": ids[0]} if in_one else {"ids": ids}
            self._join([sql], {"sign": -1 if backward else 1, "backward": backward, **ids_given})
        self._join(_ORDERED, {"writer": writer})
        self._run(_GAPS, {"writer": writer})  # after the events, which it reads from ``events_event``
        self._run(_MEMBERS)
        # Last: this reserves IDs of ``caches``, and from then on its readers wait for the commit.
        if rooms := self._cursor.fetchall():
            invalidate_room_states(rooms, self._using)

    def _join(self, statements: Sequence[str], more: dict[str, Any] | None = None) -> None:
        """Runs statements that join rows of the batch. PostgreSQL joins tables in the order in which a statement names them."""
        self._cursor.execute(_JOIN_AS_WRITTEN)
        for sql in statements:
            self._run(sql, more)
        self._cursor.execute(_JOIN_AS_USUAL)

    def _run(self, sql: str, more: dict[str, Any] | None = None) -> None:
        self._cursor.execute(sql.format(**self._names), {**self._values, **(more or {})})
