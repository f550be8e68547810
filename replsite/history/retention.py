"""How long the history of the live page is kept. No setting: the numbers of charts and of the table follow from it (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A span of the history that a chart shows: the length of a step, and how long its samples are kept."""

    title: str
    step_seconds: int
    kept_seconds: int


SPANS = {
    "hour": Span("Last hour", 15, 3_600),
    "day": Span("Last day", 120, 86_400),
    "month": Span("Last 30 days", 3_600, 30 * 86_400),
}
#: Changes of status are kept for so long, and so many of them at most.
CHANGES_KEPT_DAYS = 30
CHANGES_KEPT = 100_000
