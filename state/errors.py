"""Errors of the room ``state`` (pure).

    StateError
    ├── UnknownRoomVersion   there are no rules for a room version of this name
    └── UnknownStateGroup    a state group that is not stored

Messages say what, where and what to do.
"""

from __future__ import annotations

__all__ = ["StateError", "UnknownRoomVersion", "UnknownStateGroup"]


class StateError(Exception):
    """Base of all errors of this room."""


class UnknownRoomVersion(StateError, ValueError):
    """There are no rules for a room version of this name."""


class UnknownStateGroup(StateError, LookupError):
    """A state group that is not stored."""
