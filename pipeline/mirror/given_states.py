"""Gives states to events above gaps: the states that the mirrored server has stored before them. Needs Django.

A server that joins a room over federation gets the room's state from another server, and not the events below the join. So
no state follows from the events that it has. Without the state that it was given, nothing of such a room could be shown.
The same is true above a gap in the history, until the events in it come by backfill.

Only events with a missing prev event get the server's state. The states above them follow by the rules
(``events.persist.next_rows``), as in every room.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from django.db import connections

from events.models import Event
from events.persist.batch import Incoming, PersistOutcome, persist
from pipeline.mirror.source import SynapseSource
from streams.runtime.logs import get_logger

__all__ = ["MOST_GIVEN", "above_gaps", "give_states"]

log = get_logger(__name__)
#: The most events that get their states in one transaction. Each may have the state of a large room.
MOST_GIVEN = 20
#: Events without a state, of which a prev event is not here, or has no place in the graph.
_ABOVE_GAPS = """
SELECT e.event_id FROM events_event e WHERE e.state_unresolved AND {which} AND EXISTS (
    SELECT FROM events_eventedge edge WHERE edge.event_id = e.event_id AND NOT EXISTS (
        SELECT FROM events_event prev
        WHERE prev.event_id = edge.prev_event_id AND prev.room_id = e.room_id AND NOT prev.outlier
    )
) ORDER BY e.room_id, e.stream_ordering
"""
_EVENTS = """
SELECT e.event_id, e.type, e.state_key, e.rejected_reason, e.soft_failed, e.stream_ordering, j.json, j.room_version
FROM events_event e JOIN events_eventjson j USING (event_id) WHERE e.event_id = ANY (%s::text[])
ORDER BY e.room_id, e.stream_ordering
"""


def above_gaps(using: str, event_ids: Collection[str] | None = None) -> list[str]:
    """Returns the events above gaps that have no state: among ``event_ids``, or of all rooms."""
    which = "true" if event_ids is None else "e.event_id = ANY (%s::text[])"
    with connections[using].cursor() as cursor:
        cursor.execute(_ABOVE_GAPS.format(which=which), None if event_ids is None else [list(event_ids)])
        return [event_id for (event_id,) in cursor.fetchall()]


def give_states(
    source: SynapseSource, server_name: str, using: str, event_ids: Sequence[str]
) -> tuple[PersistOutcome, list[str]]:
    """Gives the events the server's states before them. An event of which the server has no state stays without.

    Also returns the events whose states have entries that are not here yet: on the server such entries are old events or
    outliers, and may have positions of another writer or stream. Raises ``SourceAway`` and ``django.db.Error``.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_EVENTS, [list(event_ids)])
        rows = cursor.fetchall()
    states = source.states(event_ids)
    here = _stored({entry for state in states.values() for entry in state.entries.values()}, using)
    given, incomplete = [], []
    for event_id, kind, key, rejected, soft_failed, place, content, version in rows:
        if (state := states.get(event_id)) is None:
            continue
        before = state.before((kind, key), event_id) if key is not None else state.entries
        if not here.issuperset(before.values()):
            incomplete.append(event_id)
            continue
        given.append(
            Incoming(
                bytes(content),
                version,
                event_id,
                backfilled=place < 0,
                state_before=[*before.values()],
                verdict=(rejected, soft_failed),
                backfilled_at=min(place, -1),
            )
        )
    outcome = persist(given, using, verified=True, history_of=server_name, as_stored=True)
    for refused in outcome.refused:
        log.warning("mirror.state_not_given", event_id=given[refused.place].event_id, error=str(refused.error)[:300])
    return outcome, incomplete


def _stored(event_ids: Collection[str], using: str) -> set[str]:
    found = Event.objects.using(using).filter(event_id__in=event_ids).values_list("event_id", flat=True)
    return set(found)
