"""Rooms brought in by ``persist``, and what the tables say of them afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from events.format.parsing import ParsedEvent
from events.maintenance.purge_batch import PurgeRequest
from events.models import (
    BackwardExtremity,
    CurrentState,
    CurrentStateDelta,
    Event,
    EventVisibility,
    ForwardExtremity,
)
from events.operations.purge_history import purge_events
from events.persist import batch as storing
from events.persist.batch import Incoming, PersistOutcome


def incoming(event: ParsedEvent, **about) -> Incoming:
    """A parsed event as it comes in, its verdict not told."""
    known = {"room_version": event.room_version, "outlier": event.outlier, "backfilled": event.backfilled}
    return Incoming(event.json, **{**known, **about})


def persist(events: Iterable[Incoming], using: str | None = None) -> PersistOutcome:
    """Store events whose signatures are not what the test is about."""
    return storing.persist(events, using, verified=True)


def persist_all(events: Iterable[ParsedEvent], batch: int = 1) -> list[PersistOutcome]:
    """Persist in batches of that size, in the order given."""
    events = list(events)
    return [persist([incoming(e) for e in events[n : n + batch]]) for n in range(0, len(events), batch)]


def extremities(room_id: str) -> list[str]:
    """The forward extremities, sorted."""
    return sorted(ForwardExtremity.objects.filter(room_id=room_id).values_list("event_id", flat=True))


def gaps(room_id: str) -> list[str]:
    """The backward extremities, sorted."""
    return sorted(BackwardExtremity.objects.filter(room_id=room_id).values_list("event_id", flat=True))


def current_state(room_id: str) -> dict[tuple[str, str], str]:
    """The current state."""
    rows = CurrentState.objects.filter(room_id=room_id).values_list("type", "state_key", "event_id")
    return {(event_type, state_key): event_id for event_type, state_key, event_id in rows}


def replayed_state(room_id: str) -> dict[tuple[str, str], str]:
    """What the changes of the current state add up to; each must name the entry that it replaces."""
    found: dict[tuple[str, str], str] = {}
    rows = CurrentStateDelta.objects.filter(room_id=room_id).order_by("stream_ordering", "type", "state_key")
    for row in rows:
        key = row.type, row.state_key
        assert found.pop(key, None) == row.prev_event_id
        if row.event_id is not None:
            found[key] = row.event_id
    return found


def ranges(room_id: str) -> list[tuple[str | None, str, str, str | None]]:
    """The ranges of visibility by event IDs: (user, kind, first, last)."""
    at = dict(Event.objects.filter(room_id=room_id).values_list("stream_ordering", "event_id"))
    rows = EventVisibility.objects.filter(room_id=room_id).values_list("user_id", "kind", "first", "last")
    found = [(user, kind, at[first], None if last is None else at[last]) for user, kind, first, last in rows]
    return sorted(found, key=str)


def verdicts(room_id: str) -> dict[str, tuple[bool, bool]]:
    """Event -> (rejected, soft-failed)."""
    rows = Event.objects.filter(room_id=room_id).values_list("event_id", "rejected_reason", "soft_failed")
    return {event_id: (reason is not None, soft_failed) for event_id, reason, soft_failed in rows}


def purge_half(room_id: str) -> None:
    """Purges the room's history below the middle of its accepted events, messages of this server included."""
    accepted = Event.objects.filter(room_id=room_id, outlier=False, soft_failed=False, rejected_reason=None)
    cut = sorted(accepted.values_list("topological_ordering", flat=True))[accepted.count() // 2]
    for _ in purge_events(PurgeRequest(room_id, cut, True, "default")):
        pass
