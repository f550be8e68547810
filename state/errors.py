"""Errors of state groups and room versions (pure). Every message names the problem, the place and the remedy.

Each sentence is written where it is raised.
"""

from __future__ import annotations


class StateError(Exception):
    """Base class of all errors of this package."""


class StepTooLarge(StateError, ValueError):
    """A state event changes more entries than one delta on top of the state before the event may hold."""


class UnknownRoomVersion(StateError, ValueError):
    """A room version that has no rules here."""


class UnknownStateGroup(StateError, LookupError):
    """A state group that is not stored."""
