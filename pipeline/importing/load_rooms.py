"""The last step of an import: staged results -> the tables of the rooms, some rooms a transaction (driver, with Django).

A room becomes visible as a whole, together with its row in ``ImportedRoom``: a process that is killed leaves every room either
loaded and written down, or not begun. Stream IDs are reserved late in the transaction, after everything that needs none is
written, so that the linear position waits for the shortest time; the engine announces them after the commit.

Within a batch the IDs follow the given stream orderings (else the order of the lines), over all its rooms. On the backward
stream they are given from the newest to the oldest event, so that there too the stored order is the given one.
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
from streams.caching import invalidate_room_states
from streams.db.consistent_read import long_transaction
from streams.writing.process import current_writer

__all__ = ["EVENTS_PER_BATCH", "LoadedRoom", "batches", "promote", "ready_rooms"]

EVENTS_PER_BATCH = 20_000
"""Rooms are loaded together up to this size; a larger room makes a transaction of its own."""
_LARGEST_RESERVATION = 500_000
_OWN = [name for name in OWN_COLUMNS if name != "state_group"]


def _of_batch(table: str = "") -> str:
    """The rows of the batch's rooms."""
    return f"{table}.room_no = ANY(%(rooms)s)" if table else "room_no = ANY(%(rooms)s)"


#: Taking the rooms is what locks them: whoever comes second finds them here.
_TAKE_ROOMS = f"""
{INSERT_INTO["events_room"]}
SELECT room_id, room_version, creator, create_event_id, current_state_unresolved, visibility_unresolved
FROM {{result_room}} WHERE {_of_batch()} ORDER BY room_id
ON CONFLICT (room_id) DO NOTHING RETURNING room_id
"""
#: Rows that need no reserved ID. IDs of events are hashes: in their order they find the pages of an index one after the other.
#: The JSON is fetched event by event: a join would be free to read the staged events whole, for every batch of rooms again.
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
#: IDs of state groups: ascending in each room, from the table's own sequence.
_MAP_GROUPS = f"""
CREATE TEMPORARY TABLE import_group ON COMMIT DROP AS
SELECT room_no, number, nextval((SELECT pg_get_serial_sequence('state_stategroup', 'id'))::regclass) AS id
FROM (SELECT room_no, number FROM {{result_group}} WHERE {_of_batch()} ORDER BY room_no, number) AS ordered
"""
#: How the statements below are joined must not depend on what PostgreSQL believes of tables that have just been filled: by
#: figures from small rooms it takes a large room's rows for a few, and compares each with each. So the tables are joined in
#: the order in which they stand here, by hashes; every one of them is cut down to the batch first.
_JOIN_AS_WRITTEN = "SET LOCAL join_collapse_limit = 1; SET LOCAL enable_nestloop = off"
#: Afterwards: other statements of the transaction, such as reserving, look into tables that hold the whole site.
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
#: Stream orderings, from the IDs that were reserved, for one direction.
_MAP_EVENTS = f"""
INSERT INTO import_ordering (room_no, index, stream_ordering)
SELECT room_no, index, %(sign)s * ids.id
FROM (
    SELECT room_no, index, row_number() OVER (ORDER BY {{order}}) AS place
    FROM {{result_event}} WHERE {_of_batch()} AND backward = %(backward)s
) AS ordered
JOIN unnest(%(ids)s::bigint[]) WITH ORDINALITY AS ids(id, place) USING (place)
"""
#: The same for IDs that follow each other without a hole, as most do.
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
#: Of the few events that stand on a backward extremity; it looks into tables that hold the whole site.
_GAPS = f"""
{INSERT_INTO["events_timelinegap"]}
SELECT DISTINCT r.room_id, min(e.stream_ordering), %(writer)s
FROM {{result_backward}} b JOIN {{result_room}} r USING (room_no)
JOIN events_eventedge edge ON edge.prev_event_id = b.event_id
JOIN events_event e ON e.event_id = edge.event_id AND e.room_id = r.room_id
WHERE {_of_batch("b")} AND {_of_batch("r")} AND e.stream_ordering > 0 GROUP BY r.room_id, b.event_id
"""


#: The rooms that have a current state, with their members.
_MEMBERS = f"""
SELECT r.room_id, coalesce(array_agg(c.state_key) FILTER (WHERE c.type = 'm.room.member'), '{{{{}}}}')
FROM {{result_current}} c JOIN {{result_room}} r USING (room_no)
WHERE {_of_batch("c")} AND {_of_batch("r")} GROUP BY r.room_id ORDER BY r.room_id
"""


@dataclass(frozen=True, slots=True)
class LoadedRoom:
    """A room whose rows are staged and ready: its number and how many IDs it needs of each stream."""

    room_no: int
    room_id: str
    events: int
    backward: int


def batches(rooms: Iterable[LoadedRoom], events: int = EVENTS_PER_BATCH) -> Iterator[list[LoadedRoom]]:
    """Rooms in their order, as many together as have at most ``events``; at least one."""
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
    """Rooms that are worked out and not loaded, in the order of loading."""
    cursor.execute(
        f"SELECT room_no, room_id, events, backward FROM {table_name(job, 'result_room')} r WHERE events > 0 AND NOT EXISTS "
        "(SELECT FROM pipeline_importedroom done WHERE done.job_id = %s AND done.room_id = r.room_id) ORDER BY room_no",
        [job],
    )
    return [LoadedRoom(*row) for row in cursor.fetchall()]


def promote(job: int, rooms: Sequence[LoadedRoom], using: str) -> set[str]:
    """Load a batch in one transaction; returns the rooms that somebody else made meanwhile, which are left out."""
    lost: set[str] = set()
    while rooms := [room for room in rooms if room.room_id not in lost]:
        with long_transaction(using) as cursor:
            batch = _Batch(cursor, job, rooms, using)
            taken = batch.take_rooms()
            if len(taken) == len(rooms):
                batch.load()
                break
            lost |= {room.room_id for room in rooms} - taken
            transaction.set_rollback(True, using=using)
    return lost


class _Batch:
    """One transaction of loading."""

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
        """Insert the rooms themselves; what comes back is ours until the end of the transaction, and then for good."""
        self._run(_TAKE_ROOMS)
        return {row[0] for row in self._cursor.fetchall()}

    def load(self) -> None:
        """Everything else; reserves as late as can be."""
        self._cursor.execute(ROOMY)
        for sql in (*_PLAIN, _MAP_GROUPS):
            self._run(sql)
        self._join(_GROUPS)
        self._cursor.execute(
            "CREATE TEMPORARY TABLE import_ordering (room_no bigint, index bigint, stream_ordering bigint) ON COMMIT DROP"
        )
        for backward, name in ((False, EVENTS.name), (True, BACKFILL.name)):
            count = sum(room.backward if backward else room.events - room.backward for room in self._rooms)
            if count:
                ids = self._reserve(name, count)
                in_one = ids[-1] - ids[0] == len(ids) - 1
                sql = (_MAP_EVENTS_IN_ONE if in_one else _MAP_EVENTS).replace("{order}", _GIVEN_ORDER[backward])
                ids_given = {"first_id": ids[0]} if in_one else {"ids": ids}
                self._join([sql], {"sign": -1 if backward else 1, "backward": backward, **ids_given})
        writer = {"writer": current_writer(self._using).name}
        self._join(_ORDERED, writer)
        self._run(_GAPS, writer)
        self._run(_MEMBERS)
        if (
            rooms := self._cursor.fetchall()
        ):  # late: readers of ``caches`` wait for its position until the transaction ends
            invalidate_room_states(rooms, self._using)

    def _reserve(self, stream: str, count: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < count:
            with registry.get(stream).reserve(min(count - len(ids), _LARGEST_RESERVATION), self._using) as reservation:
                ids += reservation.ids
        return ids

    def _join(self, statements: Sequence[str], more: dict[str, Any] | None = None) -> None:
        """Run statements that join rows of the batch with each other."""
        self._cursor.execute(_JOIN_AS_WRITTEN)
        for sql in statements:
            self._run(sql, more)
        self._cursor.execute(_JOIN_AS_USUAL)

    def _run(self, sql: str, more: dict[str, Any] | None = None) -> None:
        self._cursor.execute(sql.format(**self._names), {**self._values, **(more or {})})
