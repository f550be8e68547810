"""Errors of the app ``events`` (pure).

    EventsError
    ├── NotCanonical         a value that canonical JSON cannot express
    ├── EventRefused         a line or an event that cannot be stored: ``reason`` is one stable word of ``Reason``
    ├── EventNotAllowed      a local event that the auth rules refuse
    ├── SignaturesUnchecked  the caller did not say who checks the signatures of the events to store
    ├── UnusableKeys         server keys that cannot be read
    ├── HistoryError         events of a room that contradict each other
    ├── CannotForget         a room that the user has not left
    ├── TooManyWaiters       the limit of waiting callers in this process is reached
    ├── CompressionRefused   a room whose state groups are damaged
    ├── CompressionWentWrong rewritten state groups would give other states; the transaction was rolled back
    ├── PositionsTaken       archived events whose stream positions belong to other events here
    ├── PurgeRefused         the room would be left without forward extremities, or is being purged already
    ├── PurgeWentWrong       a purge would have changed what it has to keep; its transaction was rolled back
    ├── RangesDisagree       recomputed ranges do not match the room's current state; nothing was written
    └── ReadingError
        ├── UnknownEvent     no event with this ID is stored
        ├── UnknownRoom      no event of this room is stored
        ├── StateUnresolved  the requested state is not known
        │   └── EventUnreadable  the state is known, but not the content of one of its events: its JSON is damaged
        ├── NotReadable      the user may not read the room, or the room's visibility is not known
        ├── InvalidQuery     a limit or an ID that no query accepts
        └── BadToken         a timeline token that cannot be read

Messages say what is wrong, where, and what would be right.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "BadToken",
    "CannotForget",
    "CompressionRefused",
    "CompressionWentWrong",
    "EventNotAllowed",
    "EventRefused",
    "EventUnreadable",
    "EventsError",
    "HistoryError",
    "InvalidQuery",
    "NotCanonical",
    "NotReadable",
    "PositionsTaken",
    "PurgeRefused",
    "PurgeWentWrong",
    "RangesDisagree",
    "ReadingError",
    "Reason",
    "SignaturesUnchecked",
    "StateUnresolved",
    "TooManyWaiters",
    "UnknownEvent",
    "UnknownRoom",
    "UnusableKeys",
]


class EventsError(Exception):
    """The base class of all errors of this app."""


class PositionsTaken(EventsError):
    """The error for archived events that cannot be restored: other events of this database have their stream positions."""


class PurgeRefused(EventsError):
    """The error for a purge of a room's history that cannot be done as requested, or not at this time."""


class PurgeWentWrong(EventsError):
    """The error for a purge that would have changed rows that it must keep. The purge's transaction was rolled back."""


class RangesDisagree(EventsError):
    """The error for recomputed visibility ranges that do not match the room's current state.

    Either the recomputed ranges or the stored current state is wrong. Nothing was written.
    """


class CompressionRefused(EventsError):
    """The error for state groups that cannot be rewritten, because their rows are damaged."""


class CompressionWentWrong(EventsError):
    """The error for rewritten state groups that would give other states than before. The transaction was rolled back."""


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
    BAD_STATE = "bad-state"
    CYCLE = "cycle"
    BAD_SIGNATURE = "bad-signature"


class NotCanonical(EventsError, ValueError):
    """The error for a value that canonical JSON cannot express. ``reason`` names the rule that the value breaks."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EventRefused(EventsError, ValueError):
    """The error for an event that cannot be stored.

    ``reason`` is a stable word. ``detail`` says what is wrong and what would be right.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[EventRefused], tuple[Reason, str]]:
        return type(self), (self.reason, self.detail)


class EventNotAllowed(EventsError):
    """The error for a local event that the auth rules refuse. The event was not created. ``reason`` names the rule."""

    def __init__(self, event_type: str, sender: str, room_id: str, reason: str) -> None:
        super().__init__(f"{sender} may not send {event_type} in {room_id}: {reason}.")
        self.reason = reason


class HistoryError(EventsError, ValueError):
    """The error for events of a room that contradict each other, for instance two create events or two room versions."""


class SignaturesUnchecked(EventsError, TypeError):
    """The error if a caller stores events without saying who checks their signatures."""


class UnusableKeys(EventsError, ValueError):
    """The error for server keys that cannot be read."""


class CannotForget(EventsError):
    """The error for a room that a user cannot forget, because the user has not left the room."""


class TooManyWaiters(EventsError):
    """The error for a wait that was refused, because the limit of waiting callers in this process is reached."""


class ReadingError(EventsError):
    """The error for a query about stored rooms that has no answer."""


class UnknownEvent(ReadingError):
    """The error for an event ID without a stored event."""


class UnknownRoom(ReadingError):
    """The error for a room without a stored event."""


class StateUnresolved(ReadingError):
    """The error for a requested state that is not known, because events on which it builds are not stored."""


class EventUnreadable(StateUnresolved):
    """The error if rules need the content of a stored event whose JSON is damaged or missing."""


class NotReadable(ReadingError):
    """The error for a room that the user may not read, or whose visibility is not known."""


class InvalidQuery(ReadingError, ValueError):
    """The error for a limit or an ID that no query accepts."""


class BadToken(ReadingError, ValueError):
    """The error for a timeline token that cannot be read."""
