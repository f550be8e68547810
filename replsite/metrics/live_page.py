"""Why WebSockets of the live page were closed, and how often, in this process; for the metrics."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum

__all__ = ["Closing", "closed"]


class Closing(IntEnum):
    """The codes that a WebSocket is closed with."""

    FAILED = 1011
    NOT_UNDERSTOOD = 4400
    ANONYMOUS = 4401
    NO_STAFF = 4403
    FLOOD = 4429

    @property
    def label(self) -> str:
        """The reason in words."""
        return _LABELS[self]


_LABELS = {
    Closing.FAILED: "page not sent",
    Closing.NOT_UNDERSTOOD: "not understood",
    Closing.ANONYMOUS: "not logged in",
    Closing.NO_STAFF: "not staff",
    Closing.FLOOD: "too many messages",
}
closed: Counter[str] = Counter()
