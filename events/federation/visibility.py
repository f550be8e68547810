"""Computes what another server sees of stored events, for many events at once.

A server sees an event in full or pruned. The state after the event decides which. If the history visibility in this
state is closed (neither world-readable nor shared), the memberships of the server's users in this state decide. The
states of all events are read by a few queries, however many events there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence

from django.db import connections

from events.arguments import can_be_stored
from events.errors import InvalidQuery
from events.reading.event_json import ServedEvent
from events.stored_states import StoredStates
from events.visibility.rule import Answer, Verdict, for_server, known_visibility
from events.visibility.viewer import HISTORY_VISIBILITY, history_visibility
from streams.db.consistent_read import read_only_snapshot

__all__ = ["as_seen_by", "server_in_room", "server_verdicts"]

_EVENTS_PER_QUERY = 1_000
_OPEN = ("world_readable", "shared")

#: Selects true if a user of the server is joined to the room.
_JOINED_NOW = """
SELECT EXISTS (SELECT FROM events_currentstate WHERE room_id = %s AND type = 'm.room.member' AND membership = 'join'
    AND substr(state_key, strpos(state_key, ':') + 1) = %s)
"""

#: The columns of the events that the rule needs.
_EVENTS = """
SELECT e.event_id, e.state_group, e.outlier, EXISTS (SELECT FROM events_eraseduser x WHERE x.user_id = e.sender)
FROM events_event e WHERE e.event_id = ANY(%s)
"""

#: The chains that make up each state group, from its own chain downwards. ``upto`` is the last group of a chain that
#: belongs to the state group.
_CHAINS = """
WITH RECURSIVE spans AS (
    SELECT id AS wanted, chain, id AS upto FROM state_stategroup WHERE id = ANY(%s)
    UNION ALL
    SELECT spans.wanted, below.chain, below.id
    FROM spans
    JOIN state_stategroup AS first ON first.id = spans.chain
    JOIN state_stategroup AS below ON below.id = first.prev_group
)
SELECT wanted, chain, upto FROM spans ORDER BY wanted, upto DESC
"""

#: The memberships of a server's users in these chains, newest first. Each chain is read once.
_MEMBERSHIPS = """
SELECT asked.chain, delta.state_group, delta.state_key, member.membership
FROM unnest(%(chains)s::bigint[], %(upto)s::bigint[]) AS asked (chain, upto), LATERAL (
    SELECT state_group, state_key, event_id FROM state_stategroupdelta
    WHERE chain = asked.chain AND state_group <= asked.upto AND type = 'm.room.member'
      AND substr(state_key, strpos(state_key, ':') + 1) = %(server)s
    OFFSET 0
) AS delta LEFT JOIN events_event AS member ON member.event_id = delta.event_id
ORDER BY asked.chain, delta.state_group DESC
"""


def as_seen_by(server: str, events: Sequence[ServedEvent], using: str = "default") -> list[ServedEvent]:
    """Returns the events in the same order, pruned if the server may not see the content. Raises ``InvalidQuery``."""
    verdicts = server_verdicts(server, [event.event_id for event in events], using)
    return [event.as_pruned() if verdicts[event.event_id].answer is Answer.REDACTED else event for event in events]


def server_verdicts(server: str, event_ids: Collection[str], using: str = "default") -> dict[str, Verdict]:
    """Returns for each event ID what the server sees, and by which rule. Events that are not stored are left out.

    Raises ``InvalidQuery`` if ``server`` cannot be a server name.
    """
    if not can_be_stored(server):
        raise InvalidQuery(f"{server!r:.100} is no name of a server.")
    wanted = [event_id for event_id in dict.fromkeys(event_ids) if can_be_stored(event_id)]
    found: dict[str, Verdict] = {}
    for start in range(0, len(wanted), _EVENTS_PER_QUERY):
        with read_only_snapshot(using):
            found.update(_verdicts(server, wanted[start : start + _EVENTS_PER_QUERY], using))
    return found


def server_in_room(server: str, room_id: str, using: str = "default") -> bool:
    """Returns true if a user of the server is joined to the room now.

    Other servers must get no data of the room.
    """
    if not can_be_stored(server) or not can_be_stored(room_id):
        return False
    with connections[using].cursor() as cursor:
        cursor.execute(_JOINED_NOW, [room_id, server])
        return bool(cursor.fetchone()[0])


def _verdicts(server: str, event_ids: Sequence[str], using: str) -> Iterable[tuple[str, Verdict]]:
    with connections[using].cursor() as cursor:
        cursor.execute(_EVENTS, [list(event_ids)])
        events = cursor.fetchall()
    groups = {group for _, group, _, _ in events if group is not None}
    states = StoredStates(groups, [HISTORY_VISIBILITY], using)
    settings = {group: history_visibility(states.state(group) or {}) for group in groups}
    closed = [group for group, setting in settings.items() if known_visibility(setting) not in _OPEN]
    memberships = _memberships(server, closed, using) if closed else {}
    for event_id, group, outlier, erased in events:
        known = group is not None or outlier
        there = memberships.get(group, ())
        yield event_id, for_server(settings.get(group), there, sender_erased=erased, state_known=known)


def _memberships(server: str, groups: Collection[int], using: str) -> dict[int, set[str | None]]:
    """Returns for each state group the memberships of the server's users in it.

    The search in a group ends at the first user who is joined, so the group's other memberships may be missing. State
    groups are stored as chains of deltas (``state.models``). The groups of a room share few chains. So each chain is
    read once, and not once for each group.
    """
    spans: dict[int, list[tuple[int, int]]] = {}
    highest: dict[int, int] = {}
    rows: dict[int, list[tuple[int, str, str | None]]] = {}
    with connections[using].cursor() as cursor:
        cursor.execute(_CHAINS, [list(groups)])
        for group, chain, upto in cursor:
            spans.setdefault(group, []).append((chain, upto))
            highest[chain] = max(upto, highest.get(chain, upto))
        cursor.execute(_MEMBERSHIPS, {"chains": list(highest), "upto": list(highest.values()), "server": server})
        for chain, *row in cursor:
            rows.setdefault(chain, []).append(tuple(row))
    return {group: _until_joined(spans[group], rows) for group in spans}


def _until_joined(
    spans: Sequence[tuple[int, int]], rows: Mapping[int, Sequence[tuple[int, str, str | None]]]
) -> set[str | None]:
    """Returns the memberships in one state group, read from the newest row to the oldest, up to the first ``join``.

    ``spans`` has pairs (chain, last group): the chains from which the group is read, and the last group of each chain
    that counts. ``rows`` has the stored memberships by chain, newest first.
    """
    # From the newest row to the oldest: the first row of a user is their membership in this group. The rows of a chain are
    # shared by groups; this group has the rows up to ``upto``.
    met: set[str] = set()
    found: set[str | None] = set()
    for chain, upto in spans:
        below = rows.get(chain, ())
        for _, user_id, membership in below[bisect_left(below, -upto, key=lambda row: -row[0]) :]:
            if user_id not in met:
                met.add(user_id)
                found.add(membership)
                if membership == "join":
                    return found
    return found
