"""Errors of the room ``events`` (pure).

    EventsError
    ├── NotCanonical         a value that canonical JSON cannot express
    ├── EventRefused         a line or an event that cannot be stored: ``reason`` is one stable word of ``Reason``
    ├── EventNotAllowed      a local event that the auth rules refuse
    ├── SignaturesUnchecked  nothing says who checks the signatures of events that are to be stored
    ├── UnusableKeys         keys of servers that cannot be read
    ├── HistoryError         a room's events that contradict each other
    ├── CannotForget         a room that the user has not left
    ├── TooManyWaiters       as many callers wait in this process as may
    ├── CompressionRefused   a room whose state groups are damaged
    ├── CompressionWentWrong rewritten state groups would not read as before; the transaction was taken back
    ├── PositionsTaken       archived events whose stream positions are those of others here
    ├── PurgeRefused         the room would be left without leaves, or is being purged already
    ├── PurgeWentWrong       a purge would change what stays; its transaction was taken back
    ├── RangesDisagree       ranges made anew would not fit the room's current state; nothing was written
    └── ReadingError
        ├── UnknownEvent     no event of that ID is stored
        ├── UnknownRoom      no event of that room is stored
        ├── StateUnresolved  the state asked for is not known
        ├── NotReadable      the user may not read the room, or nobody knows who may
        ├── InvalidQuery      a limit or an ID that no question can have
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
    """Base of all errors of this room."""


class PositionsTaken(EventsError):
    """Archived events cannot go back: their stream positions are those of other events, so this is another database."""


class PurgeRefused(EventsError):
    """A room's history cannot be purged like this, or not now."""


class PurgeWentWrong(EventsError):
    """What stays would not be what it was: the transaction was taken back."""


class RangesDisagree(EventsError):
    """Who sees what, worked out anew, would not fit the room's current state: one of them is wrong, and nothing was written."""


class CompressionRefused(EventsError):
    """State groups that cannot be rewritten, because they are damaged."""


class CompressionWentWrong(EventsError):
    """Rewritten state groups would not read as before: the transaction was taken back."""


class Reason(StrEnum):
    """Why an event was refused: stable words that quarantine tables, summaries and tests rely on."""

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
    MISSING_PREV_EVENTS = "missing-prev-events"
    BAD_STATE = "bad-state"
    CYCLE = "cycle"
    BAD_SIGNATURE = "bad-signature"


class NotCanonical(EventsError, ValueError):
    """A value that canonical JSON cannot express; ``reason`` tells which rule it breaks."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EventRefused(EventsError, ValueError):
    """An event that cannot be stored: ``reason`` is a stable word, ``detail`` says what and what would be right."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[EventRefused], tuple[Reason, str]]:
        return type(self), (self.reason, self.detail)


class EventNotAllowed(EventsError):
    """A local event that was not made, because the auth rules refuse it: ``reason`` tells which."""

    def __init__(self, event_type: str, sender: str, room_id: str, reason: str) -> None:
        super().__init__(f"{sender} may not send {event_type} in {room_id}: {reason}.")
        self.reason = reason


class HistoryError(EventsError, ValueError):
    """The events of a room contradict each other, for instance two create events or two room versions."""


class SignaturesUnchecked(EventsError, TypeError):
    """Events are to be stored, and nothing says who checks their signatures."""


class UnusableKeys(EventsError, ValueError):
    """Keys of servers that cannot be read."""


class CannotForget(EventsError):
    """A room cannot be forgotten by a user who has not left it."""


class TooManyWaiters(EventsError):
    """As many callers wait for news in this process as may."""


class ReadingError(EventsError):
    """A question about stored rooms that has no answer."""


class UnknownEvent(ReadingError):
    """No event of that ID is stored."""


class UnknownRoom(ReadingError):
    """No event of that room is stored."""


class StateUnresolved(ReadingError):
    """The state asked for is not known: events that it builds on are not here."""


class NotReadable(ReadingError):
    """The user may not read the room, or the room's visibility is not known."""


class InvalidQuery(ReadingError, ValueError):
    """A limit or an ID that no question can have."""


class BadToken(ReadingError, ValueError):
    """A timeline token that cannot be read."""
