"""Purges the history of a room below a depth, while the room is read and written.

Messages are deleted. State events stay as outliers, because event auth and states need them. Messages of this server
stay as outliers, too, unless the request includes them. Events at exactly the given depth (the *cut*) stay in the
graph.

Events go from the lowest depth up, some thousand in each transaction. Each transaction locks the room's row first, as
every write to a room does, and notifies other processes by ``Room.content_generation`` and on the stream ``caches``.
After each transaction, the room looks like a room whose history begins a little higher. The missing prev events are
backward extremities, so backfill may fetch them again, and a sync across them has a limited timeline. So a purge may be
stopped after any transaction and run again.

The caller then deletes state groups that no event needs (``events.maintenance.group_gc``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

from django.db import connections, transaction

from events.arguments import can_be_stored
from events.errors import PurgeRefused, UnknownEvent, UnknownRoom
from events.maintenance.purge_batch import (
    GOES,
    LOWEST,
    PURGED,
    HistoryPurged,
    PurgeRequest,
    check_forward_extremities,
    purge_batch,
)
from events.reading.timeline import timeline_place
from events.room_lock import room_transaction
from streams.db import driver
from streams.db.lock_holders import describe_lock_holder
from streams.db.schema_mark import marked_lock

__all__ = [
    "HistoryPurged",
    "PurgeRequest",
    "TimeCut",
    "check_forward_extremities",
    "count_left_behind",
    "count_purged",
    "cut_at_event",
    "cut_at_time",
    "cut_at_token",
    "deepest_extremity",
    "find_time_cut",
    "foresee_history",
    "purge_events",
    "purge_lock",
    "room_figures",
]

_EVENTS_PER_TRANSACTION = 2_000

_EVENT = "SELECT room_id, topological_ordering, outlier FROM events_event WHERE event_id = %s"
#: An event was sent before the time if its sender says so, or if it was received before the time, whatever its sender says.
_BEFORE = "(origin_server_ts < %(ms)s OR extract(epoch FROM received_at) * 1000 < %(ms)s)"
#: An event counts as sent after the time unless its sender's clock is known to be wrong: the event claims to be sent after it
#: was received. When it was sent is then unknown, so it neither goes by its own time nor keeps others.
_CLOCKS_DIFFER_MS = 3_600_000
_NOT_BEFORE = f"NOT {_BEFORE} AND origin_server_ts <= extract(epoch FROM received_at) * 1000 + {_CLOCKS_DIFFER_MS}"
#: The depth of the last event before the time, and the lowest event that is not before it. The cut is the lower of both depths.
#: Without the second, an event that claims to be old but lies high in the graph would take younger events below it along.
_AT_TIME = f"""
SELECT last.topological_ordering, kept.topological_ordering, kept.event_id
FROM (
    SELECT topological_ordering FROM events_event
    WHERE room_id = %(room)s AND NOT outlier AND {_BEFORE} ORDER BY stream_ordering DESC LIMIT 1
) AS last LEFT JOIN (
    SELECT topological_ordering, event_id FROM events_event
    WHERE room_id = %(room)s AND NOT outlier AND {_NOT_BEFORE} ORDER BY topological_ordering, stream_ordering LIMIT 1
) AS kept ON true
"""
_LEFT_BEHIND = f"""
SELECT count(*) FROM events_event WHERE room_id = %(room)s AND topological_ordering BETWEEN %(above)s + 1 AND %(upto)s
  AND state_key IS NULL AND NOT outlier AND {_BEFORE}
"""
_ROOM = "SELECT FROM events_room WHERE room_id = %s"
_DEEPEST_LEAF = """
SELECT max(topological_ordering) FROM events_forwardextremity leaf JOIN events_event e USING (event_id) WHERE leaf.room_id = %s
"""
_LOCK = marked_lock("'replsite.purge:' || %s")
_ONLY_ONE = f"SELECT pg_try_advisory_lock({_LOCK})"
_KEY = f"SELECT {_LOCK}"
_GIVE_BACK = f"SELECT pg_advisory_unlock({_LOCK})"

#: Counting a large room may take long, so it uses no parallel workers.
_ON_ONE_CORE = "SET LOCAL max_parallel_workers_per_gather = 0"
#: Table -> the ``FROM`` clause of a room's rows in it.
_FIGURES: Mapping[str, str] = {
    "events_event": "FROM events_event WHERE room_id = %(room)s",
    "events_eventjson": "FROM events_eventjson JOIN events_event e USING (event_id) WHERE e.room_id = %(room)s",
    "events_eventauth": "FROM events_eventauth JOIN events_event e USING (event_id) WHERE e.room_id = %(room)s",
    "events_eventedge": "FROM events_eventedge JOIN events_event e USING (event_id) WHERE e.room_id = %(room)s",
    "events_forwardextremity": "FROM events_forwardextremity WHERE room_id = %(room)s",
    "events_backwardextremity": "FROM events_backwardextremity WHERE room_id = %(room)s",
    "events_timelinegap": "FROM events_timelinegap WHERE room_id = %(room)s",
    "state_stategroup": "FROM state_stategroup WHERE room_id = %(room)s",
    "state_stategroupdelta": (
        "FROM state_stategroup g JOIN state_stategroupdelta d ON d.chain = g.chain AND d.state_group = g.id "
        "WHERE g.room_id = %(room)s"
    ),
}
_COUNT = f"SELECT count(*) FROM events_event e WHERE {PURGED}"
_FORESEE = f"""
WITH purged AS MATERIALIZED (
    SELECT e.event_id, e.stream_ordering, e.outlier, {GOES} AS goes FROM events_event e WHERE {PURGED}
), above AS MATERIALIZED (
    SELECT edge.prev_event_id, e.stream_ordering FROM events_eventedge edge JOIN events_event e USING (event_id)
    WHERE e.room_id = %(room)s AND NOT e.outlier AND e.event_id NOT IN (SELECT event_id FROM purged)
), holes AS (
    SELECT stream_ordering FROM events_timelinegap
    WHERE room_id = %(room)s AND stream_ordering NOT IN (SELECT stream_ordering FROM purged)
    UNION
    SELECT above.stream_ordering FROM above JOIN purged ON purged.event_id = above.prev_event_id WHERE above.stream_ordering > 0
), gaps AS (
    SELECT gap.event_id FROM events_backwardextremity gap WHERE gap.room_id = %(room)s AND (
        gap.event_id IN (SELECT prev_event_id FROM above)
        OR gap.event_id NOT IN (
            SELECT edge.prev_event_id FROM events_eventedge edge WHERE edge.event_id IN (SELECT event_id FROM purged)))
    UNION
    SELECT above.prev_event_id FROM above JOIN purged ON purged.event_id = above.prev_event_id
)
SELECT (SELECT count(*) FILTER (WHERE goes) FROM purged), (SELECT count(*) FILTER (WHERE NOT goes) FROM purged),
    (SELECT count(*) FROM events_eventedge WHERE event_id IN (SELECT event_id FROM purged)),
    (SELECT count(*) FROM events_forwardextremity WHERE event_id IN (SELECT event_id FROM purged)),
    (SELECT count(*) FROM gaps), (SELECT count(*) FROM holes)
"""


# --- where to cut -----------------------------------------------------------------------------------------------------


def cut_at_event(room_id: str, event_id: str, using: str) -> int:
    """Returns the depth of an event of the room.

    Raises ``UnknownRoom``, and ``UnknownEvent`` if the event is not stored, is an outlier, or is of another room.
    """
    _check_room(room_id, using)
    found = _first(using, _EVENT, [event_id]) if can_be_stored(event_id) else None
    if found is None or found[0] != room_id or found[2]:
        raise UnknownEvent(f"{room_id} has no event {event_id!r:.300} with a place in its history.")
    return int(found[1])


class TimeCut(NamedTuple):
    """A cut at a time. ``last`` is the depth of the last event before the time.

    ``kept`` is the lowest event that is not before the time, if it keeps events before the time from being purged.
    """

    depth: int
    last: int
    kept: str | None


def cut_at_time(room_id: str, ms: int, using: str) -> int:
    """Returns the depth of the last event before a time, or 0 if there is no such event. Raises ``UnknownRoom``.

    ``ms`` are milliseconds since 1970. An event is before the time if ``origin_server_ts`` says so, or if it was received
    before. The last event is the last in stream order. If an event at or after ``ms`` has a lower depth, returns this
    lower depth. So a purge below the result deletes no event at or after ``ms``, except events that claim to be sent
    an hour or more after they were received: when these were sent is not known.
    """
    return find_time_cut(room_id, ms, using).depth


def find_time_cut(room_id: str, ms: int, using: str) -> TimeCut:
    """Returns the cut of ``cut_at_time``, and the reason if events before ``ms`` lie above it. Raises ``UnknownRoom``."""
    _check_room(room_id, using)
    found = _first(using, _AT_TIME, {"room": room_id, "ms": ms})
    if found is None:
        return TimeCut(0, 0, None)
    last, lowest, event_id = found
    return TimeCut(last, last, None) if lowest is None or lowest >= last else TimeCut(lowest, last, event_id)


def count_left_behind(room_id: str, ms: int, between: tuple[int, int], using: str) -> int:
    """Returns how many messages from before ``ms`` lie above the first and at or below the second of two depths."""
    names = {"room": room_id, "ms": ms, "above": between[0], "upto": between[1]}
    found = _first(using, _LEFT_BEHIND, names)
    return int(found[0]) if found is not None else 0


def cut_at_token(room_id: str, token: str, using: str) -> int:
    """Returns the depth that a timeline token contains. Raises ``UnknownRoom`` and ``BadToken``."""
    _check_room(room_id, using)
    return timeline_place(token)[0]


def _check_room(room_id: str, using: str) -> None:
    if not can_be_stored(room_id) or _first(using, _ROOM, [room_id]) is None:
        raise UnknownRoom(f"There is no room {room_id!r:.300}.")


def _first(using: str, statement: str, values: Any) -> Sequence[Any] | None:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, values)
        found: Sequence[Any] | None = cursor.fetchone()
    return found


# --- the purge --------------------------------------------------------------------------------------------------------


@contextmanager
def purge_lock(room_id: str, using: str) -> Iterator[None]:
    """Holds a lock within the block, so that no other session purges the room.

    Raises ``PurgeRefused`` if another session holds the lock.
    """
    with (
        closing(driver.direct_connection(using, application_name="replsite purge")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(_ONLY_ONE, [room_id])
        if not cursor.fetchone()[0]:
            cursor.execute(_KEY, [room_id])
            holder = describe_lock_holder(cursor, cursor.fetchone()[0])
            raise PurgeRefused(f"{room_id} is being purged already{holder}; see manage.py jobs.")
        try:
            yield
        finally:
            # A purges and closes its connection, B asks for the lock at once. PostgreSQL may end A's session only after
            # that, and B would be refused. So A releases the lock before it closes. If the connection is lost, so is
            # the lock.
            with suppress(driver.DatabaseError):
                cursor.execute(_GIVE_BACK, [room_id])


def deepest_extremity(room_id: str, using: str) -> int | None:
    """Returns the depth of the room's deepest forward extremity, or null if the room has none."""
    found = _first(using, _DEEPEST_LEAF, [room_id])
    return None if found is None else found[0]


def foresee_history(request: PurgeRequest) -> tuple[HistoryPurged, dict[str, int]]:
    """Returns (counts of what a purge would delete, number of rows by table after the purge). Leaves out state groups.

    Raises ``PurgeRefused``.
    """
    with connections[request.using].cursor() as cursor:
        check_forward_extremities(cursor, request)
        cursor.execute(_FORESEE, request.names)
        deleted, outliers, edges, extremities, gaps, holes = cursor.fetchone()
    now = room_figures(request.room_id, request.using)
    gone = {
        "events_event": deleted,
        "events_eventjson": deleted,
        "events_eventedge": edges,
        "events_forwardextremity": extremities,
    }
    after = {table: now[table] - count for table, count in gone.items()}
    return HistoryPurged(deleted, outliers, extremities), after | {
        "events_backwardextremity": gaps,
        "events_timelinegap": holes,
    }


def count_purged(request: PurgeRequest) -> int:
    """Returns the number of events that a purge would delete or make outliers. Raises ``PurgeRefused``."""
    with connections[request.using].cursor() as cursor:
        check_forward_extremities(cursor, request)
        cursor.execute(_COUNT, request.names)
        return int(cursor.fetchone()[0])


def room_figures(room_id: str, using: str) -> dict[str, int]:
    """Returns the number of rows of a room by table, counted in one snapshot."""
    columns = ", ".join(f"(SELECT count(*) {source})" for source in _FIGURES.values())
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_ON_ONE_CORE)
        cursor.execute(f"SELECT {columns}", {"room": room_id})
        found = cursor.fetchone()
    return dict(zip(_FIGURES, found or (), strict=True))


def purge_events(request: PurgeRequest) -> Iterator[HistoryPurged]:
    """Purges the events of a request. Yields the progress, always the same object, after every transaction.

    Must be called within ``purge_lock``, and not inside a transaction. Raises ``PurgeRefused``. Appends facts, so this
    process becomes a writer of the stream ``caches``.
    """
    done, place = HistoryPurged(), LOWEST
    while True:
        with room_transaction(request.using), connections[request.using].cursor() as cursor:
            found = purge_batch(cursor, request, place, _EVENTS_PER_TRANSACTION, done)
        if found is None:
            return
        place = found
        yield done
