"""Errors of the room ``state`` (pure).

    StateError
    ├── StepTooLarge         a state event's group that cannot be built on the state before the event
    ├── UnknownRoomVersion   there are no rules for a room version of this name
    └── UnknownStateGroup    a state group that is not stored

Messages say what, where and what to do.
"""

from __future__ import annotations

__all__ = ["StateError", "StepTooLarge", "UnknownRoomVersion", "UnknownStateGroup"]


class StateError(Exception):
    """Base class of all errors of this room."""


class StepTooLarge(StateError, ValueError):
    """Raised when the group of a state event changes more entries than one delta on the state before may hold."""


class UnknownRoomVersion(StateError, ValueError):
    """Raised for a room version that has no rules here."""


class UnknownStateGroup(StateError, LookupError):
    """Raised for a state group that is not stored."""
