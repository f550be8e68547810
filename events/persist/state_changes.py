"""Finds rows of ``events`` and ``backfill`` that change the current state of rooms.

A process that reads such a row drops cached values that depend on the state. The rows are of two kinds. A row
``["state", …]`` changes an entry of the current state. A redaction changes the content of an entry, if it redacts a
state event. The row of a redaction has only the ID of its target, so the stored target is looked up. A redaction of a
message changes nothing.

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
    """The rule that finds state changes in rows of the stream ``events``."""

    def may_change(self, row: Sequence[Any]) -> bool:
        """Returns true if the row is a change of the current state, or an event that is a redaction."""
        kind, values = row
        return kind == "state" or values[4] is not None

    def changed(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, Sequence[str]]]:
        """Yields pairs (room, users whose membership changed) for the rooms whose current state the rows change."""
        for kind, values in rows:
            if kind == "state":
                yield values[0], users_of(values[1], values[2])
        yield from _redacted(cursor, [values[4] for kind, values in rows if kind == "ev"])


class BackfillStateChanges:
    """The rule that finds state changes in rows of ``backfill``: a redaction may redact an entry of the current state."""

    def may_change(self, row: Sequence[Any]) -> bool:
        """Returns true if the row's event is a redaction."""
        return row[4] is not None

    def changed(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[str, Sequence[str]]]:
        """Yields pairs (room, users whose membership event was redacted) for rooms whose current state the rows change."""
        return _redacted(cursor, [row[4] for row in rows])


def users_of(event_type: str, state_key: str) -> list[str]:
    """Returns a list with the user of a membership entry. Returns an empty list for any other entry."""
    return [state_key] if event_type == _MEMBER else []


def _redacted(cursor: Any, targets: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
    if not targets:
        return
    cursor.execute(_STATE_EVENTS, [list(targets)])
    for room_id, event_type, state_key in cursor.fetchall():
        yield room_id, users_of(event_type, state_key)
