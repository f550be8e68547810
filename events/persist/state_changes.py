"""Which rows of ``events`` and ``backfill`` change what a room's current state says, for cached values that depend on it.

An entry changes with a row ``["state", …]``. What an entry says changes also when its event is redacted. The row of a redaction
names its target by ID only, so the stored target is looked up; a redaction of a message changes nothing.
Changes that no row tells are told with ``streams.caching.invalidate_room_state`` where they are made: state that becomes unknown,
redactions that count late or no longer, purge, restore and repair.
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
    """The rooms whose state rows of ``events`` change."""

    def may_change(self, row: Sequence[Any]) -> bool:
        """Whether it is a change of state or a redaction."""
        kind, values = row
        return kind == "state" or values[4] is not None

    def changed(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, Sequence[str]]]:
        """Rooms, each with the users whose membership changed."""
        for kind, values in rows:
            if kind == "state":
                yield values[0], users_of(values[1], values[2])
        yield from _redacted(cursor, [values[4] for kind, values in rows if kind == "ev"])


class BackfillStateChanges:
    """The rooms whose state rows of ``backfill`` change: an old redaction may be of an entry that is current."""

    def may_change(self, row: Sequence[Any]) -> bool:
        """Whether it is a redaction."""
        return row[4] is not None

    def changed(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, Sequence[str]]]:
        """Rooms, each with the user whose membership was redacted."""
        return _redacted(cursor, [row[4] for row in rows])


def users_of(event_type: str, state_key: str) -> list[str]:
    """The user whose membership an entry of the state is, if it is one."""
    return [state_key] if event_type == _MEMBER else []


def _redacted(cursor: Any, targets: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
    if not targets:
        return
    cursor.execute(_STATE_EVENTS, [list(targets)])
    for room_id, event_type, state_key in cursor.fetchall():
        yield room_id, users_of(event_type, state_key)
