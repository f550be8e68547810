"""Errors of rooms and events (pure). Messages say what is wrong, where, and what would be right.

Each sentence is written where it is raised, unless its class makes it of parts.
"""

from __future__ import annotations

from enum import StrEnum

from streams.errors import SiteError


class EventsError(SiteError):
    """The base class of all errors of this app."""


class PositionsTaken(EventsError):
    """Archived events that cannot be restored: other events of this database have their stream positions."""


class PurgeRefused(EventsError):
    """A purge of a room's history that cannot be done as requested, or not at this time."""


class PurgeWentWrong(EventsError):
    """A purge that would have changed rows that it must keep. The purge's transaction was rolled back."""


class RangesDisagree(EventsError):
    """Recomputed visibility ranges that do not match the room's current state.

    Either the recomputed ranges or the stored current state is wrong. Nothing was written.
    """


class CompressionRefused(EventsError):
    """State groups that cannot be rewritten, because their rows are damaged."""


class CompressionWentWrong(EventsError):
    """Rewritten state groups that would give other states than before. The transaction was rolled back."""


class Reason(StrEnum):
    """The reasons for which events are refused: stable words that quarantine tables, summaries and tests rely on."""

    LINE_TOO_LONG = "line-too-long"
    NOT_JSON = "not-json"
    NOT_AN_OBJECT = "not-an-object"
    DUPLICATE_KEY = "duplicate-key"
    TOO_DEEP = "too-deep"
    BAD_NUMBER = "bad-number"
    BAD_UNICODE = "bad-unicode"
    UNKNOWN_ROOM_VERSION = "unknown-room-version"
    MISSING_KEY = "missing-key"
    WRONG_TYPE = "wrong-type"
    BAD_IDENTIFIER = "bad-identifier"
    IDENTIFIER_TOO_LONG = "identifier-too-long"
    NUL_CHARACTER = "nul-character"
    OUT_OF_RANGE = "out-of-range"
    TOO_LARGE = "too-large"
    BAD_REFERENCE = "bad-reference"
    WRONG_EVENT_ID = "wrong-event-id"
    UNKNOWN_ROOM = "unknown-room"
    WRONG_ROOM_VERSION = "wrong-room-version"
    NO_PREV_EVENTS = "no-prev-events"
    MISSING_AUTH_EVENTS = "missing-auth-events"
    MISSING_PREV_EVENTS = "missing-prev-events"
    TOO_MANY_FORKS = "too-many-forks"
    BAD_STATE = "bad-state"
    CYCLE = "cycle"
    BAD_SIGNATURE = "bad-signature"


class NotCanonical(EventsError, ValueError):
    """A value that canonical JSON cannot express. ``reason`` names the rule that the value breaks."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EventRefused(EventsError, ValueError):
    """An event that cannot be stored.

    ``reason`` is a stable word. ``detail`` says what is wrong and what would be right.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[EventRefused], tuple[Reason, str]]:
        return type(self), (self.reason, self.detail)


class EventNotAllowed(EventsError):
    """A local event that the auth rules refuse. The event was not created. ``reason`` names the rule."""

    def __init__(self, event_type: str, sender: str, room_id: str, reason: str) -> None:
        super().__init__(f"{sender} may not send {event_type} in {room_id}: {reason}.")
        self.reason = reason


class HistoryError(EventsError, ValueError):
    """Events of a room that contradict each other, for instance two create events or two room versions."""


class SignaturesUnchecked(EventsError, TypeError):
    """A caller stores events without saying who checks their signatures."""


class UnusableKeys(EventsError, ValueError):
    """Server keys that cannot be read."""


class CannotForget(EventsError):
    """A room that a user cannot forget, because the user has not left the room."""


class TooManyWaiters(EventsError):
    """A wait that was refused, because the limit of waiting callers in this process is reached."""


class ReadingError(EventsError):
    """A query about stored rooms that has no answer."""


class UnknownEvent(ReadingError):
    """An event ID without a stored event."""


class UnknownRoom(ReadingError):
    """A room without a stored event."""


class StateUnresolved(ReadingError):
    """A requested state that is not known, because events on which it builds are not stored."""


class EventUnreadable(StateUnresolved):
    """Rules need the content of a stored event whose JSON is damaged or missing."""


class NotReadable(ReadingError):
    """A room that the user may not read, or whose visibility is not known."""


class InvalidQuery(ReadingError, ValueError):
    """A limit or an ID that no query accepts."""


class BadToken(ReadingError, ValueError):
    """A timeline token that cannot be read."""
