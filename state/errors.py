"""Errors of the package ``state`` (pure).

    StateError
    ├── StepTooLarge         the group of a state event cannot be stored on top of the state before the event
    ├── UnknownRoomVersion   there are no rules for a room version of this name
    └── UnknownStateGroup    the state group is not stored

Every message names the problem, the place and the remedy.
"""

from __future__ import annotations

__all__ = ["StateError", "StepTooLarge", "UnknownRoomVersion", "UnknownStateGroup"]


class StateError(Exception):
    """Base class of all errors of this package."""


class StepTooLarge(StateError, ValueError):
    """Raised if a state event changes more entries than one delta on top of the state before the event may hold."""


class UnknownRoomVersion(StateError, ValueError):
    """Raised for a room version that has no rules here."""


class UnknownStateGroup(StateError, LookupError):
    """Raised for a state group that is not stored."""
