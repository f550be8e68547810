"""Finds rows of ``events`` and ``backfill`` that change the current state of rooms.

Cached values that depend on the state are dropped because of such rows. A row ``["state", …]`` changes an entry. A
redaction of a state event changes the content of its entry. The row of a redaction has only the ID of its target, so
the stored target is looked up. A redaction of a message changes nothing.

Some changes have no row: state that becomes unknown, redactions that take effect late or lose their effect, purge,
restore and repair. The code that makes such a change calls ``streams.caching.invalidate_room_state`` itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["BackfillStateChanges", "EventsStateChanges", "users_of"]

_MEMBER = "m.room.member"
_STATE_EVENTS = """
SELECT room_id, type, state_key FROM events_event WHERE event_id = ANY(%s::text[]) AND state_key IS NOT NULL
"""


class EventsStateChanges:
    """The state changes in rows of ``events``."""

    def may_change(self, row: Sequence[Any]) -> bool:
        """Returns true for a state change or a redaction."""
        kind, values = row
        return kind == "state" or values[4] is not None

    def changed(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, Sequence[str]]]:
        """Yields pairs of a room and the users whose membership changed."""
        for kind, values in rows:
            if kind == "state":
                yield values[0], users_of(values[1], values[2])
        yield from _redacted(cursor, [values[4] for kind, values in rows if kind == "ev"])


class BackfillStateChanges:
    """The state changes in rows of ``backfill``: a backfilled redaction may redact an entry of the current state."""

    def may_change(self, row: Sequence[Any]) -> bool:
        """Returns true for a redaction."""
        return row[4] is not None

    def changed(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, Sequence[str]]]:
        """Yields pairs of a room and the user whose membership event was redacted."""
        return _redacted(cursor, [row[4] for row in rows])


def users_of(event_type: str, state_key: str) -> list[str]:
    """Returns the user of a membership entry, as a list of one, and an empty list for other entries."""
    return [state_key] if event_type == _MEMBER else []


def _redacted(cursor: Any, targets: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
    if not targets:
        return
    cursor.execute(_STATE_EVENTS, [list(targets)])
    for room_id, event_type, state_key in cursor.fetchall():
        yield room_id, users_of(event_type, state_key)
