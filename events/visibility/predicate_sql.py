"""Builds the only SQL predicate for "a user sees an event" (pure).

``sees()`` returns text for a WHERE clause over two aliases: a row of ``events_event`` and an *access row*, which says how a
user may read a room. Access rows are given as parameters (``ACCESS_ROWS``), which ``events.visibility.access`` computes: one
row for a page of a room, many for a sync. Or they come from a join with the view ``events_roomaccess``. So pages, syncs and
the view use the same text.

An access row has these columns:

    room_id, user_id
    peeking     the user reads the room as a world-readable one
    recorded    the user has a membership event in the room
    cut, cut_depth      (stream, topological) position of the user's leave; NULL: no cut
    kept_since  messages with an origin_server_ts below this have expired; NULL: no message has

Assumes the tables of ``events.models`` and the SQL function ``events_membership_at(state_group, user_id)``.

Migrations have a text of their own. If you change a function or view here, add a migration that installs it.
"""

from __future__ import annotations

__all__ = ["ACCESS", "ACCESS_ROWS", "MEMBERSHIP_AT", "ROOM_ACCESS", "VISIBLE_EVENT", "is_accepted", "pruned", "sees"]

#: Returns a user's membership in a state group. It walks the chain as ``state.store.FULL_STATE`` does, for one key.
MEMBERSHIP_AT = """
CREATE FUNCTION events_membership_at(state_group bigint, user_id text) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
WITH RECURSIVE spans AS (
    SELECT chain, id AS upto FROM state_stategroup WHERE id = $1
    UNION ALL
    SELECT below.chain, below.id
    FROM spans
    JOIN state_stategroup AS first ON first.id = spans.chain
    JOIN state_stategroup AS below ON below.id = first.prev_group
)
SELECT member.membership
FROM spans, LATERAL (
    SELECT delta.state_group, delta.event_id FROM state_stategroupdelta AS delta
    WHERE delta.chain = spans.chain AND delta.state_group <= spans.upto
      AND delta.type = 'm.room.member' AND delta.state_key = $2
    ORDER BY delta.state_group DESC LIMIT 1
) AS entry LEFT JOIN events_event AS member USING (event_id)
ORDER BY entry.state_group DESC LIMIT 1
$$
"""

#: A source for FROM: access rows given as parameters. ``events.visibility.access.access_parameters`` returns their values.
ACCESS_ROWS = """
(SELECT given.*, %(user_id)s::text AS user_id FROM unnest(
    %(access_rooms)s::text[], %(access_peeking)s::boolean[], %(access_recorded)s::boolean[],
    %(access_cuts)s::bigint[], %(access_cut_depths)s::bigint[], %(access_kept_since)s::bigint[]
) AS given (room_id, peeking, recorded, cut, cut_depth, kept_since))
"""


def is_accepted(event: str = "e") -> str:
    """Returns SQL for "clients may see the event": it is accepted, and its type is not only for servers."""
    return f"""(NOT {event}.outlier AND NOT {event}.soft_failed AND {event}.rejected_reason IS NULL
  AND {event}.type NOT IN ('m.room.aliases', 'org.matrix.dummy_event'))"""


def sees(event: str = "e", access: str = "a") -> str:
    """Returns SQL for "the user of the parameters sees the event", all rules included.

    ``event`` is the alias of a table of events, and ``access`` the alias of access rows (``ACCESS_ROWS``). The caller
    joins the two by ``room_id``.
    """
    return f"""{_seen(event, access)}
AND ({event}.state_key IS NOT NULL OR (
  ({access}.kept_since IS NULL OR {event}.origin_server_ts >= {access}.kept_since)
  AND NOT {event}.sender = ANY(ARRAY(
    SELECT i.ignored_user_id FROM events_ignoreduser i WHERE i.user_id = %(user_id)s))
))"""


def pruned(event: str = "e", access: str = "a") -> str:
    """Returns SQL for "the user, who sees the event, sees only the redacted form, because the sender is erased"."""
    return f"""({_erased(event)} AND CASE
  WHEN {_is_own_membership(event, access)} THEN NOT coalesce({event}.membership = 'join'
    OR ({event}.membership <> 'leave' AND {_membership_before(event, access)} = 'join'), false)
  ELSE events_membership_at({event}.state_group, {access}.user_id) IS DISTINCT FROM 'join' END)"""


def _seen(event: str, access: str) -> str:
    # The part that depends on room state, including the position above which a user who has left sees nothing.
    return f"""{is_accepted(event)}
AND ({access}.cut IS NULL OR ({event}.stream_ordering <= {access}.cut
  AND ({event}.stream_ordering > 0 OR {event}.topological_ordering <= {access}.cut_depth)))
AND ({event}.type NOT IN ('m.room.redaction', 'm.call.invite') OR NOT {_single(_WIDE, "withheld", event)})
AND (
  {_in_wide_range(event, f"(v.kind = 'world' OR NOT {access}.peeking)")}
  OR ({event}.type = 'm.room.history_visibility' AND NOT {_erased(event)} AND (
    {_single(_WIDE, "world_before", event)} OR ({_single(_WIDE, "shared_before", event)} AND NOT {access}.peeking)))
  OR (
    ({access}.recorded OR NOT {access}.peeking)
    AND CASE WHEN {access}.peeking AND {_in_wide_range(event, "v.kind = 'shared'")} THEN {_joined_at(event, access)}
      ELSE {_in_user_range(event, access)} END
  )
)"""


_WIDE = "IS NULL"


def _some_range(condition: str) -> str:
    # Not ``EXISTS``, which the planner may turn into one read of the ranges of all rooms.
    return f"coalesce((SELECT true FROM events_eventvisibility v WHERE {condition} LIMIT 1), false)"


def _covers(of: str, event: str, condition: str = "true") -> str:
    # Only the last range that begins at or before the event is read. This is enough: the ranges of a room (``shared``,
    # ``world``) do not overlap, and those of a user (``joined``, ``invited``) share at most the first event of the
    # later.
    return f"""coalesce((
      SELECT (v.last IS NULL OR v.last >= {event}.stream_ordering) AND {condition} FROM events_eventvisibility v
      WHERE v.room_id = {event}.room_id AND {of} AND v.first <= {event}.stream_ordering
      ORDER BY v.first DESC LIMIT 1), false)"""


def _in_wide_range(event: str, condition: str) -> str:
    return _covers("v.user_id IS NULL AND v.kind IN ('shared', 'world')", event, condition)


def _single(user: str, kind: str, event: str) -> str:
    # there is a row of this kind for this event alone
    return _some_range(f"""v.room_id = {event}.room_id AND v.user_id {user} AND v.kind = '{kind}'
      AND v.first = {event}.stream_ordering""")


def _in_user_range(event: str, access: str) -> str:
    user = f"= {access}.user_id"
    covered = _covers(f"v.user_id {user} AND v.kind IN ('joined', 'invited')", event)
    return f"(({covered} AND NOT {_single(user, 'hidden', event)}) OR {_single(user, 'shown', event)})"


def _erased(event: str) -> str:
    return f"EXISTS (SELECT FROM events_eraseduser x WHERE x.user_id = {event}.sender)"


def _is_own_membership(event: str, access: str) -> str:
    return f"({event}.type = 'm.room.member' AND {event}.state_key = {access}.user_id)"


def _membership_before(event: str, access: str) -> str:
    # in the group to which the event's own state group is a delta
    return f"""events_membership_at(
      (SELECT g.prev_group FROM state_stategroup g WHERE g.id = {event}.state_group), {access}.user_id)"""


def _joined_at(event: str, access: str) -> str:
    # In a range ``shared``, a peeking user sees only the events at which the user was joined.
    return f"""CASE WHEN {_is_own_membership(event, access)} THEN coalesce({event}.membership = 'join'
        OR {_membership_before(event, access)} = 'join'
        OR ({event}.membership = 'leave' AND {_membership_before(event, access)} = 'invite'), false)
      ELSE coalesce(events_membership_at({event}.state_group, {access}.user_id) = 'join', false) END"""


#: True if a user reads a room by their membership: they are joined, or have left without forgetting it.
_READS = """(m.membership = 'join' OR (m.membership = 'leave' AND NOT coalesce((
  SELECT true FROM events_forgottenroom f
  WHERE f.user_id = m.state_key AND f.room_id = m.room_id AND f.event_id = m.event_id), false)))"""

#: The view of access rows, for every user with a membership in a room's current state. The view is flat, so that a query may
#: begin with a user, a room or an event. A cut does not always begin at the leave itself. It may also begin at a message that
#: arrived with a given state. If that message was purged, the cut stays, and its depth is that of the leave.
ROOM_ACCESS = f"""
CREATE VIEW events_roomaccess AS
SELECT m.state_key AS user_id, m.room_id, NOT {_READS} AS peeking, true AS recorded,
  cut.first AS cut, cut.depth AS cut_depth, NULL::bigint AS kept_since
FROM events_currentstate m
LEFT JOIN LATERAL (
  SELECT v.first, coalesce(e.topological_ordering, (
    SELECT own.topological_ordering FROM events_event own WHERE own.event_id = m.event_id)) AS depth
  FROM events_eventvisibility v LEFT JOIN events_event e ON e.stream_ordering = v.first
  WHERE v.room_id = m.room_id AND v.user_id = m.state_key AND v.kind = 'cut' ORDER BY v.first DESC LIMIT 1
) AS cut ON m.membership = 'leave' AND {_READS}
WHERE m.type = 'm.room.member' AND m.membership IS NOT NULL AND ({_READS} OR {
    _some_range("v.room_id = m.room_id AND v.user_id IS NULL AND v.kind = 'peekable' AND v.last IS NULL")
})
"""

#: Returns how a user may read rooms, with each room's retention policy. A room that is not stored has no row. It is a
#: function, because planning the query takes longer than running it. ``OFFSET 0`` makes PostgreSQL look up each room.
#: Otherwise it expects that the user has few rooms, and reads all of them.
ACCESS = """
CREATE FUNCTION events_access(asked_user text, asked_rooms text[]) RETURNS TABLE (
  out_room character varying, known boolean, readable boolean, out_peeking boolean, out_recorded boolean, out_cut bigint,
  out_cut_depth bigint, out_membership character varying, forgotten boolean, policy bytea
) LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan AS $access$
BEGIN
RETURN QUERY
SELECT r.room_id, NOT (r.visibility_unresolved OR r.current_state_unresolved), a.user_id IS NOT NULL OR (
    m.event_id IS NULL AND EXISTS (SELECT FROM events_eventvisibility v
      WHERE v.room_id = r.room_id AND v.user_id IS NULL AND v.kind = 'peekable' AND v.last IS NULL)
  ), coalesce(a.peeking, true), EXISTS (
    SELECT FROM events_event e WHERE e.type = 'm.room.member' AND e.state_key = asked_user AND e.room_id = r.room_id
    OFFSET 0
  ), a.cut, a.cut_depth, m.membership, EXISTS (
    SELECT FROM events_forgottenroom f WHERE f.user_id = asked_user AND f.room_id = r.room_id AND f.event_id = m.event_id
  ), j.json
FROM unnest(asked_rooms) AS asked (room_id)
JOIN events_room r USING (room_id)
LEFT JOIN LATERAL (
    SELECT c.event_id, c.membership FROM events_currentstate c
    WHERE c.room_id = r.room_id AND c.type = 'm.room.member' AND c.state_key = asked_user OFFSET 0
) AS m ON true
LEFT JOIN LATERAL (
    SELECT * FROM events_roomaccess v WHERE v.room_id = r.room_id AND v.user_id = asked_user OFFSET 0
) AS a ON true
LEFT JOIN (
    events_currentstate p JOIN events_event pe ON pe.event_id = p.event_id AND pe.redacted_by IS NULL
    JOIN events_eventjson j ON j.event_id = p.event_id
) ON p.room_id = r.room_id AND p.type = 'm.room.retention' AND p.state_key = '';
END $access$
"""

#: Every event that a user with a membership sees, without retention.
VISIBLE_EVENT = f"""
CREATE VIEW events_visibleevent AS
SELECT a.user_id, e.room_id, e.event_id, e.stream_ordering, e.topological_ordering, e.type, e.state_key, e.sender,
  e.redacted_by IS NOT NULL OR {pruned()} AS redacted
FROM events_event e JOIN events_roomaccess a ON a.room_id = e.room_id
WHERE {_seen("e", "a")}
AND (e.state_key IS NOT NULL OR coalesce((
  SELECT false FROM events_ignoreduser i WHERE i.user_id = a.user_id AND i.ignored_user_id = e.sender), true))
"""
