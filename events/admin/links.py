"""Links to events and rooms on admin pages: a short description of an event, and the address of its page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.contrib.admin.utils import quote
from django.urls import reverse

from events.models import Event
from streams.runtime.text import safe_text

_COLUMNS = (
    "stream_ordering", "event_id", "type", "state_key", "sender", "outlier", "rejected_reason", "soft_failed", "redacted_by",
)  # fmt: skip
_EVENTS_PER_QUERY = 1_000


@dataclass(frozen=True, slots=True)
class EventLink:
    """A link to an event by its ID. ``url`` is None if the event is not stored."""

    event_id: str
    url: str | None = None
    about: str = ""
    words: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The ID as safe text for a page. In room versions 1 and 2 the sender chooses the ID."""
        return safe_text(self.event_id, 260)


def event_links(event_ids: Iterable[str], using: str) -> dict[str, EventLink]:
    """Returns a link for each of these events, stored or not. Each query reads at most 1,000 events."""
    wanted = list(dict.fromkeys(event_ids))
    found = {event_id: EventLink(event_id) for event_id in wanted}
    for start in range(0, len(wanted), _EVENTS_PER_QUERY):
        part = wanted[start : start + _EVENTS_PER_QUERY]
        for event in Event.objects.using(using).filter(event_id__in=part).only(*_COLUMNS):
            found[event.event_id] = link_of(event)
    return found


def link_of(event: Event) -> EventLink:
    key = f" {safe_text(event.state_key, 60)}" if event.state_key else ""
    about = f"{safe_text(event.type, 60)}{key} by {safe_text(event.sender, 60)}"
    return EventLink(event.event_id, event_url(event.stream_ordering), about, tuple(verdict_words(event)))


def verdict_words(event: Event) -> list[str]:
    """Returns words for what is special about an event, the most important first."""
    found = {
        "rejected": event.rejected_reason is not None,
        "soft-failed": event.soft_failed,
        "outlier": event.outlier,
        "redacted": event.redacted_by is not None,
        "backfilled": event.stream_ordering < 0,
    }
    return [word for word, holds in found.items() if holds]


def event_url(stream_ordering: int) -> str:
    return reverse("admin:events_event_change", args=[quote(stream_ordering)])


def room_url(room_id: str) -> str:
    return reverse("admin:events_room_change", args=[quote(room_id)])


def page_number(asked: str | None, pages: int) -> int:
    """Returns the requested page number, limited to the range from 1 to ``pages``. Anything unusable means 1."""
    number = int(asked) if asked is not None and asked.isascii() and asked.isdigit() and len(asked) < 9 else 1
    return min(max(number, 1), pages)
