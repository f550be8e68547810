"""Carries out one transaction of a purge of history, for up to some thousand events.

One statement finds the next events by depth and deletes all rows that belong to these events. So event IDs do not
travel between the database and this process. All parts of the statement see the room as it was under the lock, before
anything was deleted. ``events.operations.purge_history`` has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections

from events.columns import INSERT_INTO
from events.declarations import CACHE_NAME
from events.errors import PurgeRefused
from events.persist.lock_and_read import lock_and_read
from events.persist.next_rows import next_rows
from events.persist.room_cache import StoredRoom
from events.persist.write_rows import write_rooms
from events.room_lock import changing_room
from events.rows import BY_INDEX, CHANGE_ROOM
from streams.conf import stream_settings

POSITION_LIMIT = 2**63
LOWEST = (-POSITION_LIMIT, -POSITION_LIMIT)
"""The place before all events, as (depth, stream position)."""

#: ``GOES`` is true for events that are deleted. Other events that match ``PURGED`` become outliers.
GOES = "(e.state_key IS NULL AND (%(delete_local)s OR substr(e.sender, strpos(e.sender, ':') + 1) <> %(server)s))"
PURGED = (
    "e.room_id = %(room)s AND e.topological_ordering < %(cut)s AND e.stream_ordering BETWEEN %(lowest)s AND %(highest)s "
    f"AND (NOT e.outlier OR {GOES})"
)
_BEHIND = "(e.topological_ordering, e.stream_ordering) > (%(topological)s, %(stream)s)"
_IS_THERE_MORE = f"SELECT EXISTS (SELECT FROM events_event e WHERE {PURGED} AND {_BEHIND})"
_DEEPEST_EXTREMITY = """
SELECT max(topological_ordering) FROM events_forwardextremity leaf JOIN events_event e USING (event_id) WHERE leaf.room_id = %s
"""
#: Large tables are queried with arrays of keys: a plan with a join might read such a table whole, once for each
#: transaction.
#:
#: ``next`` are the events of the batch. ``above`` are events that stay in the graph, with a prev event in the batch:
#: below them are new backward extremities (``gaps``), and at live ones timeline gaps (``holes``). ``old_holes`` are
#: timeline gaps at events of the batch, ``old_gaps`` backward extremities that nothing in the graph names any more.
#: ``freed`` are prev events of the batch that this purge leaves in the graph.
_PURGE = f"""
WITH next AS MATERIALIZED (
    SELECT e.event_id, e.stream_ordering, {GOES} AS goes, e.outlier, e.topological_ordering FROM events_event e
    WHERE {PURGED} AND {_BEHIND} ORDER BY e.topological_ordering, e.stream_ordering LIMIT %(limit)s
), upward AS MATERIALIZED (
    SELECT event_id, prev_event_id FROM events_eventedge WHERE prev_event_id = ANY(ARRAY(SELECT event_id FROM next))
), outside AS MATERIALIZED (
    SELECT upward.event_id, prev_event_id FROM upward LEFT JOIN next USING (event_id) WHERE next.event_id IS NULL
), above AS MATERIALIZED (
    SELECT prev_event_id, e.stream_ordering, e.instance_name
    FROM events_event e JOIN outside USING (event_id)
    WHERE e.event_id = ANY(ARRAY(SELECT event_id FROM outside)) AND e.room_id = %(room)s AND NOT e.outlier
), edges AS (
    DELETE FROM events_eventedge WHERE event_id = ANY(ARRAY(SELECT event_id FROM next)) RETURNING prev_event_id
), json AS (
    DELETE FROM events_eventjson WHERE event_id = ANY(ARRAY(SELECT event_id FROM next WHERE goes))
), gone AS (
    DELETE FROM events_event WHERE stream_ordering = ANY(ARRAY(SELECT stream_ordering FROM next WHERE goes))
), outliers AS (
    UPDATE events_event SET outlier = true, state_group = NULL, state_unresolved = false
    WHERE stream_ordering = ANY(ARRAY(SELECT stream_ordering FROM next WHERE NOT goes AND NOT outlier))
), leaf AS MATERIALIZED (
    SELECT event_id FROM events_forwardextremity WHERE room_id = %(room)s
), leaves AS (
    DELETE FROM events_forwardextremity WHERE event_id = ANY(ARRAY(SELECT event_id FROM leaf JOIN next USING (event_id)))
    RETURNING event_id
), gaps AS (
    {INSERT_INTO["events_backwardextremity"]} SELECT DISTINCT %(room)s, prev_event_id FROM above
    ON CONFLICT (room_id, event_id) DO NOTHING
), holes AS (
    {INSERT_INTO["events_timelinegap"]}
    SELECT DISTINCT %(room)s, stream_ordering, instance_name FROM above WHERE stream_ordering > 0
    ON CONFLICT (room_id, stream_ordering) DO NOTHING
), hole AS MATERIALIZED (
    SELECT stream_ordering FROM events_timelinegap WHERE room_id = %(room)s
), old_holes AS (
    DELETE FROM events_timelinegap WHERE room_id = %(room)s
      AND stream_ordering = ANY(ARRAY(SELECT stream_ordering FROM hole JOIN next USING (stream_ordering)))
), freed AS MATERIALIZED (
    SELECT DISTINCT e.event_id FROM events_event e JOIN edges ON edges.prev_event_id = e.event_id
    WHERE e.event_id = ANY(ARRAY(SELECT prev_event_id FROM edges)) AND e.room_id = %(room)s AND NOT e.outlier AND NOT ({PURGED})
), gap AS MATERIALIZED (
    SELECT event_id FROM events_backwardextremity WHERE room_id = %(room)s
), loose AS MATERIALIZED (
    SELECT event_id FROM gap WHERE event_id IN (SELECT prev_event_id FROM edges)
      AND event_id NOT IN (SELECT prev_event_id FROM above)
), old_gaps AS (
    DELETE FROM events_backwardextremity WHERE room_id = %(room)s AND event_id = ANY(ARRAY(SELECT event_id FROM loose))
      AND NOT EXISTS (
        SELECT FROM events_eventedge edge JOIN events_event e USING (event_id)
        WHERE edge.prev_event_id = events_backwardextremity.event_id AND e.room_id = %(room)s AND NOT e.outlier
          AND NOT EXISTS (SELECT FROM next WHERE next.event_id = e.event_id)
    )
)
SELECT (SELECT count(*) FILTER (WHERE goes) FROM next), (SELECT count(*) FILTER (WHERE NOT goes) FROM next),
    (SELECT count(*) FROM leaves), ARRAY(SELECT event_id FROM freed), last.topological_ordering, last.stream_ordering
FROM (SELECT * FROM next ORDER BY topological_ordering DESC, stream_ordering DESC LIMIT 1) AS last
"""


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """A request to purge the events of a room below depth ``cut``.

    Messages of this server are deleted only if ``delete_local`` is true, else they become outliers. ``positions``
    restricts the purge to events between two stream positions, both included, such as those in an archive.
    """

    room_id: str
    cut: int
    delete_local: bool
    using: str
    positions: tuple[int, int] = (-POSITION_LIMIT, POSITION_LIMIT - 1)

    @property
    def names(self) -> dict[str, Any]:
        """The parameters of the SQL statements."""
        server = stream_settings().server_name
        lowest, highest = self.positions
        where: dict[str, Any] = {"room": self.room_id, "cut": self.cut, "lowest": lowest, "highest": highest}
        return {**where, "delete_local": self.delete_local, "server": server}


@dataclass(slots=True)
class HistoryPurged:
    """The progress of a purge, in events. ``extremities`` are forward extremities that were purged."""

    deleted: int = 0
    became_outliers: int = 0
    extremities: int = 0


def check_forward_extremities(cursor: Any, request: PurgeRequest) -> None:
    """Raises ``PurgeRefused`` if even the deepest forward extremity of the room has a lower depth than ``request.cut``."""
    cursor.execute(_DEEPEST_EXTREMITY, [request.room_id])
    deepest = cursor.fetchone()[0]
    if deepest is not None and deepest < request.cut:
        raise PurgeRefused(
            f"{request.room_id} would be left without its last event: the deepest one is at depth {deepest}, and everything "
            f"below {request.cut} was to go. Cut at {deepest} or lower."
        )


def purge_batch(
    request: PurgeRequest, place: tuple[int, int], limit: int, done: HistoryPurged
) -> tuple[int, int] | None:
    """Purges the next events after a place. Returns the place of the last purged event, or null if no event remained.

    A place is the (depth, stream position) of an event. Adds the numbers of purged events to ``done``. Raises
    ``PurgeRefused``.
    """
    names: Mapping[str, Any] = {**request.names, "topological": place[0], "stream": place[1], "limit": limit}
    # Asked without the lock, so the last call of a purge neither locks the room nor raises its content generation.
    with connections[request.using].cursor() as cursor:
        cursor.execute(_IS_THERE_MORE, names)
        if not cursor.fetchone()[0]:
            check_forward_extremities(cursor, request)
            return None
    # All conditions have an index. Outdated statistics of a shrinking table may make the planner read it whole instead.
    with changing_room(request.room_id, request.using, f"{CHANGE_ROOM}; {BY_INDEX}") as (cursor, rows):
        # under the lock: the forward extremities may be others than at the caller's check
        check_forward_extremities(cursor, request)
        cursor.execute(_PURGE, names)
        found = cursor.fetchone()
        if found is None:
            return None
        deleted, outliers, extremities, freed, *last = found
        if extremities or freed:  # the set of forward extremities may have changed
            recompute_current_state(request.room_id, request.using, freed)
        rows.stale.append((CACHE_NAME, None))
    done.deleted += deleted
    done.became_outliers += outliers
    done.extremities += extremities
    return int(last[0]), int(last[1])


def recompute_current_state(room_id: str, using: str, freed: Sequence[str] = ()) -> None:
    """Computes the current state again, after events left the graph or came back into it. Notifies other processes.

    The set of forward extremities may have changed, and with it the current state. ``freed`` has the stored prev events
    of the events that left the graph. Assumes that the room is locked.
    """
    reading = lock_and_read([], using, rooms=[room_id])
    room = StoredRoom(reading.rooms[room_id], using, reading)
    write_rooms([(room, next_rows(room, [], freed=freed))], set(), using)
