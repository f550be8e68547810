"""Counts the WebSockets of the live page that this process has closed, by the reason.

The metric ``replsite_live_closed_total`` shows these numbers.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum

__all__ = ["Closing", "closed"]


class Closing(IntEnum):
    """The codes with which the server closes a WebSocket of the live page."""

    FAILED = 1011
    NOT_UNDERSTOOD = 4400
    ANONYMOUS = 4401
    NO_STAFF = 4403
    FLOOD = 4429

    @property
    def label(self) -> str:
        """Returns the reason in words, as used in the metric."""
        return _LABELS[self]


_LABELS = {
    Closing.FAILED: "page not sent",
    Closing.NOT_UNDERSTOOD: "not understood",
    Closing.ANONYMOUS: "not logged in",
    Closing.NO_STAFF: "not staff",
    Closing.FLOOD: "too many messages",
}
closed: Counter[str] = Counter()
