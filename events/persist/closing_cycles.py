"""Finds events of a batch that would close a cycle over stored events.

Such events are possible before room version 3, where senders choose the IDs. Example: A is stored and refers to B,
which is missing. Then B arrives and refers to A. An event on a cycle has no place in the graph, and the room would lose
all forward extremities.

Only an event to which stored events refer can close a cycle. Most batches have no such event, but a batch that fills a
gap has some. From such an event, edges to prev events are followed upwards, to newer events. The time is in proportion
to the number of events above the event. Edges to auth events are followed downwards, because auth chains are short.
Assumes the caller's transaction with the room's row locked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections

from events.format.parsing import ParsedEvent
from events.room.graph import causal_order, cycles, refers_to

#: Selects the stored events of the room above some events, along prev events. A row is (event, prev event on the path to it).
_UP = """
WITH RECURSIVE up AS (
    SELECT edge.event_id, edge.prev_event_id FROM events_eventedge edge JOIN events_event e USING (event_id)
    WHERE edge.prev_event_id = ANY(%(own)s) AND e.room_id = %(room)s AND NOT e.outlier
    UNION
    SELECT edge.event_id, edge.prev_event_id
    FROM up JOIN events_eventedge edge ON edge.prev_event_id = up.event_id
    JOIN events_event e ON e.event_id = edge.event_id
    WHERE e.room_id = %(room)s AND NOT e.outlier
)
"""
_IS_REACHED = f"{_UP} SELECT EXISTS (SELECT FROM up WHERE event_id = ANY(%(named)s))"
_REACHED = f"{_UP} SELECT event_id, prev_event_id FROM up"
#: Selects the edges of auth chains: (event, auth event), for some state events and all events in their chains.
_CHAIN = """
WITH RECURSIVE chain AS (
    SELECT auth.event_id, named.id FROM events_eventauth auth, unnest(auth.auth_event_ids) AS named (id)
    WHERE auth.event_id = ANY(%(named)s)
    UNION
    SELECT auth.event_id, named.id FROM chain JOIN events_eventauth auth ON auth.event_id = chain.id,
        unnest(auth.auth_event_ids) AS named (id)
)
"""
_LEADS_BACK = f"{_CHAIN} SELECT EXISTS (SELECT FROM chain WHERE id = ANY(%(own)s))"
_CHAINS = f"{_CHAIN} SELECT event_id, id FROM chain"


@dataclass(frozen=True, slots=True)
class _Named:
    # an event's ID and all IDs to which it refers
    event_id: str
    prev_event_ids: tuple[str, ...]
    auth_event_ids: tuple[str, ...] = ()
    outlier: bool = False
    rejected_reason: str | None = None
    soft_failed: bool = False


def closing_a_cycle(
    room_id: str,
    batch: Sequence[ParsedEvent],
    above: Collection[tuple[str, str]],
    stored: Mapping[str, ParsedEvent],
    using: str,
) -> set[str]:
    """Returns the IDs of the batch's events that lie on a cycle which stored events close.

    ``above`` has the pairs (event of the batch, stored event that refers to it). ``stored`` maps IDs to stored events.
    """
    batch_ids = {event.event_id for event in batch}
    named = {other for event in batch for other in refers_to(event)} - batch_ids
    messages = [found for other in named if (found := stored.get(other)) is not None and found.state_key is None]
    edges: dict[str, set[str]] = {
        event.event_id: {*event.auth_event_ids} for event in messages
    }  # has no row in EventAuth
    values: dict[str, Any] = {"room": room_id, "own": sorted(batch_ids), "named": sorted(named)}
    closes = any(not batch_ids.isdisjoint(others) for others in edges.values())
    with connections[using].cursor() as cursor:
        walks = [(_LEADS_BACK, _CHAINS)]
        if named and any(event_id in batch_ids for event_id, _ in above):
            walks.append((_IS_REACHED, _REACHED))
        # A cheap EXISTS first. The edges are transferred only if there is a cycle.
        for asks, reads in walks:
            cursor.execute(asks, values)
            if cursor.fetchone()[0]:
                closes = True
                cursor.execute(reads, values)
                for event_id, other in cursor.fetchall():
                    edges.setdefault(event_id, set()).add(other)
    if not closes:
        return set()
    nodes = [_Named(event.event_id, refers_to(event)) for event in batch]
    nodes += [_Named(event_id, tuple(others)) for event_id, others in edges.items() if event_id not in batch_ids]
    _, left = causal_order(nodes)
    return batch_ids.intersection(nodes[number].event_id for number in cycles(nodes, left))
