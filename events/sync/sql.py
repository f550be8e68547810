"""Builds and runs the SQL of sync answers. Each query reads many rooms, and a window of positions in each.

Windows are rows (room_id, low, high, whole, own_only) given as parameters. They are joined by room to the access rows of
``events.visibility.predicate_sql``. A window has the rows with ``low < position <= high`` that the token ``now`` covers,
and ``since`` does not. A whole window ignores ``since``.

A timeline query examines at most ``scanned`` events of a window, the newest first (``NEWEST``: in stream order,
``LATEST``: in topological order). This bounds the time for each room. If a timeline query returns fewer events than
wanted, the caller runs a query ``MORE_…``, which says whether the window has older events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connections

from events.reading.event_json import SERVED, SERVED_JSON
from events.visibility.predicate_sql import ACCESS_ROWS, is_accepted, pruned, sees
from streams.core.tokens import VectorToken
from streams.db.driver import Statement, send_together

_WINDOWS = """
unnest(%(rooms)s::text[], %(lows)s::bigint[], %(highs)s::bigint[], %(wholes)s::boolean[], %(own_only)s::boolean[])
AS w (room_id, low, high, whole, own_only)
"""
_IN_WINDOW = """
e.room_id = w.room_id AND e.stream_ordering > w.low AND e.stream_ordering <= w.high
AND {now:e} AND (w.whole OR NOT {since:e})
"""
#: The same condition, for reading a room from its newest event down. The planner cannot use an index for the CASE, and
#: does not expect the CASE to exclude most events. Without it, the planner would choose to read and sort the whole
#: room.
_IN_WINDOW_FROM_TOP = f"e.room_id = w.room_id AND CASE WHEN {_IN_WINDOW} THEN true ELSE false END"
#: The user's own membership events: always sent, whether the user is in the room or not. Outliers only if ``own_only``.
#: Invites of users whom the user ignores are not sent.
_OWN_MEMBERSHIP = """
(e.type = 'm.room.member' AND e.state_key = a.user_id AND NOT e.soft_failed AND e.rejected_reason IS NULL
 AND (w.own_only OR NOT e.outlier)
 AND (e.membership IS DISTINCT FROM 'invite' OR NOT EXISTS (
   SELECT FROM events_ignoreduser i WHERE i.user_id = a.user_id AND i.ignored_user_id = e.sender)))
"""
#: An entry of the room's current state: sent to joined users whatever its visibility.
_IS_CURRENT = f"""
(e.state_key IS NOT NULL AND NOT a.peeking AND a.cut IS NULL AND {is_accepted()} AND EXISTS (
  SELECT FROM events_currentstate c
  WHERE c.room_id = e.room_id AND c.type = e.type AND c.state_key = e.state_key AND c.event_id = e.event_id))
"""
_SHOWN = f"(CASE WHEN w.own_only THEN {_OWN_MEMBERSHIP} ELSE ({sees()}) OR {_OWN_MEMBERSHIP} OR {_IS_CURRENT} END)"


def _timelines(order: str, back: str, window: str = _IN_WINDOW) -> str:
    return f"""
SELECT {SERVED}, e.pruned, e.state_group FROM {ACCESS_ROWS} a JOIN {_WINDOWS} ON w.room_id = a.room_id
CROSS JOIN LATERAL (
  SELECT e.*, {pruned()} AS pruned FROM (
    SELECT e.* FROM events_event e WHERE {window} ORDER BY {order} LIMIT %(scanned)s
  ) AS e WHERE {_SHOWN} ORDER BY {order} LIMIT %(limit)s
) AS e {SERVED_JSON}
ORDER BY e.room_id, {back}
"""


def _more(order: str, window: str = _IN_WINDOW) -> str:
    return f"""
SELECT w.room_id FROM {_WINDOWS}
WHERE EXISTS (SELECT FROM events_event e WHERE {window} ORDER BY {order} OFFSET %(scanned)s LIMIT 1)
"""


_STREAM = "e.stream_ordering DESC"
_TOPOLOGICAL = "e.topological_ordering DESC, e.stream_ordering DESC"
#: The newest events of each window that the user may see, ascending by stream ordering.
NEWEST = _timelines(_STREAM, "e.stream_ordering")
#: The last events of each window in topological order, ascending.
LATEST = _timelines(_TOPOLOGICAL, "e.topological_ordering, e.stream_ordering", _IN_WINDOW_FROM_TOP)
#: The windows with more events than are examined.
MORE_NEWEST = _more(_STREAM)
MORE_LATEST = _more(_TOPOLOGICAL, _IN_WINDOW_FROM_TOP)

#: The windows that have any event, or a change of the state at a position of its own.
LIVELY = f"""
SELECT w.room_id FROM {_WINDOWS} WHERE EXISTS (SELECT FROM events_event e WHERE {_IN_WINDOW})
UNION
SELECT w.room_id FROM {_WINDOWS} WHERE EXISTS (SELECT FROM events_currentstatedelta e WHERE {_IN_WINDOW})
"""

#: The newest gap of each window.
GAPS = f"""
SELECT w.room_id, max(e.stream_ordering) FROM {_WINDOWS} JOIN events_timelinegap e ON {_IN_WINDOW} GROUP BY w.room_id
"""

#: In each window, the newest state event whose key was changed again at a higher position that ``since`` covers.
OVERTAKEN = f"""
SELECT w.room_id, max(e.stream_ordering) FROM {_WINDOWS}
JOIN events_currentstatedelta d ON d.room_id = w.room_id
  AND d.stream_ordering > w.low AND d.stream_ordering <= %(since_highest)s AND {{since:d}}
JOIN events_event e ON {_IN_WINDOW}
  AND e.type = d.type AND e.state_key = d.state_key AND e.stream_ordering < d.stream_ordering
GROUP BY w.room_id
"""

#: A user's memberships in the current state.
MEMBERSHIPS = """
SELECT room_id, membership, event_id FROM events_currentstate WHERE type = 'm.room.member' AND state_key = %(user_id)s
"""
MEMBERSHIPS_AMONG = f"{MEMBERSHIPS.rstrip()} AND room_id = ANY(%(rooms)s::text[])\n"
#: The changes of a user's memberships above the base of ``since``, oldest first, including those that ``since`` covers and
#: those beyond ``now``.
MEMBERSHIP_CHANGES = """
SELECT d.room_id, d.stream_ordering, {now:d}, {since:d}, d.prev_event_id, before.membership, d.event_id, e.membership
FROM events_currentstatedelta d
LEFT JOIN events_event before ON before.event_id = d.prev_event_id
LEFT JOIN events_event e ON e.event_id = d.event_id
WHERE d.type = 'm.room.member' AND d.state_key = %(user_id)s AND d.stream_ordering > %(since_base)s
ORDER BY d.stream_ordering, d.id
"""
#: A user's newest membership in each room that is known only by such events, for example after an invite from another server.
OUT_OF_BAND = """
SELECT DISTINCT ON (e.room_id) e.room_id, e.event_id, e.membership, e.stream_ordering, {since:e}
FROM events_event e
WHERE e.type = 'm.room.member' AND e.state_key = %(user_id)s AND e.outlier AND e.rejected_reason IS NULL AND {now:e}
AND NOT EXISTS (SELECT FROM events_currentstate c WHERE c.room_id = e.room_id)
ORDER BY e.room_id, e.stream_ordering DESC
"""

#: Those of a user's leaves and bans that another user caused (kicks and bans), with their positions.
PUT_OUT = """
SELECT room_id, event_id, stream_ordering FROM events_event
WHERE event_id = ANY(%(events)s) AND (membership = 'ban' OR sender <> %(user_id)s) ORDER BY room_id
"""
#: The position at which each room's current state last changed from the user being joined to something else.
LAST_IN = """
SELECT d.room_id, max(d.stream_ordering) FROM events_currentstatedelta d
JOIN events_event before ON before.event_id = d.prev_event_id AND before.membership = 'join'
LEFT JOIN events_event e ON e.event_id = d.event_id
WHERE d.room_id = ANY(%(rooms)s) AND d.type = 'm.room.member' AND d.state_key = %(user_id)s
  AND e.membership IS DISTINCT FROM 'join' AND {now:d}
GROUP BY d.room_id
"""


def _entry_at(token: str) -> str:
    # The newest change ``e`` for which the SQL condition ``token`` is true gives the entry, or else the one before the
    # first.
    return f"""CASE WHEN bool_or({token}) THEN
  (array_agg(e.event_id ORDER BY e.stream_ordering DESC, e.id DESC) FILTER (WHERE {token}))[1]
  ELSE (array_agg(e.prev_event_id ORDER BY e.stream_ordering, e.id))[1] END"""


#: The keys of each room's current state that changed in its window, with the entries at ``since`` and at ``now``.
CHANGES = f"""
SELECT e.room_id, e.type, e.state_key, {_entry_at("{since:e}")}, {_entry_at("{now:e}")}
FROM {_WINDOWS} JOIN events_currentstatedelta e
  ON e.room_id = w.room_id AND e.stream_ordering > w.low AND e.stream_ordering <= w.high
GROUP BY e.room_id, e.type, e.state_key HAVING bool_or({{now:e}} AND NOT {{since:e}})
"""
#: The current state of the rooms as it is stored, which may be newer than the window …
CURRENT = """
SELECT room_id, type, state_key, event_id FROM events_currentstate WHERE room_id = ANY(%(rooms)s)
"""
#: … and for each key that changed later the entry at the window's end.
LATER_CHANGES = f"""
SELECT e.room_id, e.type, e.state_key, {_entry_at("(e.stream_ordering <= w.high AND {now:e})")}
FROM unnest(%(rooms)s::text[], %(highs)s::bigint[]) AS w (room_id, high)
JOIN events_currentstatedelta e ON e.room_id = w.room_id AND e.stream_ordering > least(w.high, %(now_base)s)
GROUP BY e.room_id, e.type, e.state_key
"""
#: The state group before each of these events. The group of an accepted state event builds on the one before it (``prev_group``).
BEFORE = """
SELECT e.room_id, CASE WHEN e.state_key IS NULL OR e.rejected_reason IS NOT NULL THEN g.id ELSE g.prev_group END
FROM events_event e JOIN state_stategroup g ON g.id = e.state_group WHERE e.event_id = ANY(%(events)s)
"""

#: Rooms by their last activity up to ``now``, newest first, below ``place``.
ACTIVITY = f"""
SELECT asked.room_id, last.stream_ordering FROM unnest(%(rooms)s::text[]) AS asked (room_id)
CROSS JOIN LATERAL (
  SELECT e.stream_ordering FROM events_event e
  WHERE e.room_id = asked.room_id AND e.stream_ordering <= %(now_highest)s AND {{now:e}} AND {is_accepted()}
  ORDER BY e.stream_ordering DESC LIMIT 1
) AS last
WHERE last.stream_ordering < %(place)s ORDER BY last.stream_ordering DESC LIMIT %(limit)s
"""


class _Covers:
    """The SQL condition "this token covers the row", formatted with the alias of the row: ``{now:e}``."""

    def __init__(self, name: str, token: VectorToken | None) -> None:
        self._name, self._token = name, token

    def __format__(self, alias: str) -> str:
        if self._token is None:
            return "false"
        plain = f"{alias}.stream_ordering <= %({self._name}_base)s"
        if not self._token.entries:
            return f"({plain})"
        return (
            f"({plain} OR EXISTS (SELECT FROM unnest(%({self._name}_writers)s::text[], %({self._name}_upto)s::bigint[]) "
            f"AS ahead (writer, upto) WHERE ahead.writer = {alias}.instance_name AND {alias}.stream_ordering <= ahead.upto))"
        )


def with_tokens(sql: str, now: VectorToken, since: VectorToken | None = None) -> tuple[str, dict[str, Any]]:
    """Returns the SQL text with the conditions for ``now`` and ``since``, and their parameters.

    A ``since`` of None covers nothing.
    """
    values: dict[str, Any] = {"now_highest": now.highest, "since_highest": since.highest if since is not None else 0}
    for name, token in (("now", now), ("since", since)):
        values[f"{name}_base"] = token.base if token is not None else 0
        if token is not None and token.entries:
            values |= {f"{name}_writers": list(token.entries), f"{name}_upto": list(token.entries.values())}
    return sql.format(now=_Covers("now", now), since=_Covers("since", since)), values


#: Makes the planner read a room's events in index order and stop when it has enough. By the average size of a room it would
#: choose to read and sort all events of the room, which is slow for large rooms.
_BY_INDEX = Statement("SET LOCAL enable_bitmapscan = off", {}, again=False)


def rows(text: str, values: Mapping[str, Any], using: str, *, by_index: bool = False) -> list[tuple[Any, ...]]:
    """Returns the rows of a query with named parameters, run in the open transaction of the alias.

    It is planned once per session, because for most of these queries planning takes longer than running. ``by_index``
    makes the planner read events in index order, for the rest of the transaction.
    """
    before = [_BY_INDEX] if by_index else []
    return send_together(connections[using], [*before, Statement(text, values)])
