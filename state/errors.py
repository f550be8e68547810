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
    """Base of all errors of this room."""


class StepTooLarge(StateError, ValueError):
    """The group of a state event differs from the state before in more than can be stored on top of that."""


class UnknownRoomVersion(StateError, ValueError):
    """There are no rules for a room version of this name."""


class UnknownStateGroup(StateError, LookupError):
    """A state group that is not stored."""
