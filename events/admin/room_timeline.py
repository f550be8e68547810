"""Builds the timeline of a room's page: all events, or the events that one user sees, filtered by type and sender.

A page examines a bounded number of events. If few of these events fit the filter, the page is short. The link to the
next page continues below the last examined event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db import DataError, transaction

from events.admin.links import event_url
from events.errors import ReadingError
from events.reading.event_json import ServedEvent
from events.reading.event_lines import line_of
from events.reading.pages import timeline
from events.visibility.access import Access, read_access
from events.visibility.explain import Explanation, explain_visibility
from events.visibility.visibility_words import REACHES, RULES
from streams.runtime.text import safe_text

EVENTS_PER_PAGE = 50
_EVENTS_PER_READ = 500
EVENTS_EXAMINED = 2_000
"""The most events that are read for one page with a filter."""
_LONGEST = 255
_DAMAGED = (
    "The stored JSON of an event here is no text. manage.py room check names it, and resync puts right what can be."
)


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One event of the timeline. ``rule`` is the reason why the requested user sees it, or empty."""

    url: str
    at: str
    sender: str
    type: str
    state_key: str
    text: str
    is_redacted: bool
    rule: str


@dataclass(frozen=True, slots=True)
class _Asked:
    # the query parameters
    user: str
    type: str
    sender: str
    before: str

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> _Asked:
        return cls(*(asked.get(name, "").strip() for name in ("user", "type", "sender", "before")))

    @property
    def filters(self) -> bool:
        return bool(self.type or self.sender)

    def fits(self, event: ServedEvent) -> bool:
        return (not self.type or event.type == self.type) and (not self.sender or event.sender == self.sender)

    def link(self, before: str) -> str:
        names = {"user": self.user, "type": self.type, "sender": self.sender, "before": before}
        return urlencode({name: value for name, value in names.items() if value})


def room_timeline(room_id: str, asked: Mapping[str, str], using: str) -> dict[str, Any]:
    """Returns the template variables of the timeline.

    ``asked`` has ``user``, ``type``, ``sender`` and the token ``before``.
    """
    wanted = _Asked.of(asked)
    context: dict[str, Any] = {
        "asked_user": safe_text(wanted.user, 300),
        "asked_type": safe_text(wanted.type, 300),
        "asked_sender": safe_text(wanted.sender, 300),
        "timeline_filtered": wanted.filters,
        "timeline_below": wanted.before,
        "timeline_newest": wanted.link(""),
    }
    if wanted.user and not _is_user(wanted.user):
        return context | {"timeline_error": "A user ID looks like @ann:example.org and has at most 255 bytes."}
    if wanted.user:
        context["access_words"] = _access_words(read_access(wanted.user, [room_id], using).get(room_id))
    try:
        with transaction.atomic(using=using):
            events, end = _read(room_id, wanted, using)
    except ReadingError as error:
        return context | {"timeline_error": safe_text(str(error), 600)}
    except DataError:
        return context | {"timeline_error": _DAMAGED}
    rules = _rules(wanted.user, events, using) if wanted.user else {}
    return context | {
        "timeline": [_row(event, rules.get(event.event_id, "")) for event in events],
        "timeline_older": "" if end is None else wanted.link(end),
    }


def _is_user(user: str) -> bool:
    return user.startswith("@") and ":" in user and "\0" not in user and len(user.encode(errors="replace")) <= _LONGEST


def _read(room_id: str, wanted: _Asked, using: str) -> tuple[list[ServedEvent], str | None]:
    # (events of the page, token below which the next page begins, or None at the room's beginning)
    found: list[ServedEvent] = []
    before: str | None = wanted.before or None
    limit = _EVENTS_PER_READ if wanted.filters else EVENTS_PER_PAGE
    for _ in range(EVENTS_EXAMINED // limit if wanted.filters else 1):
        page = timeline(room_id, wanted.user or None, limit, before=before, using=using)
        for event in page.events:
            if wanted.fits(event):
                found.append(event)
            if len(found) == EVENTS_PER_PAGE:
                is_last = event is page.events[-1] and page.end is None
                return found, None if is_last else event.token
        before = page.end
        if before is None:
            break
    return found, before


def _rules(user: str, events: Sequence[ServedEvent], using: str) -> dict[str, str]:
    answers = explain_visibility(user, [event.event_id for event in events], using)
    return {
        answer.event_id: RULES.get(answer.rule, answer.rule) for answer in answers if isinstance(answer, Explanation)
    }


def _row(event: ServedEvent, rule: str) -> TimelineRow:
    line = line_of(event)
    return TimelineRow(
        url=event_url(event.stream_ordering),
        at=line.sent,
        sender=safe_text(event.sender, 120),
        type=safe_text(event.type, 80),
        state_key=safe_text(event.state_key, 80),
        text=safe_text(line.words, 320),
        is_redacted=event.redacted_by is not None or event.pruned,
        rule=rule,
    )


def _access_words(access: Access | None) -> str:
    if access is None:
        return ""
    if access.readable and not access.peeking and access.cut is not None:
        return "The user has left the room, and sees what came before."
    return REACHES[access.reach(0, 0).value]
