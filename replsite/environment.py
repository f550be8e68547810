"""Reads environment variables as values of a type. Each function returns ``default`` if the variable is not set.

If a variable's text cannot be used, the function raises ``ImproperlyConfigured`` with the variable's name and what to write.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

__all__ = ["json_of", "list_of", "number", "switch", "text", "whole_number"]

_Default = TypeVar("_Default", int, None)
_ON, _OFF = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


def text(name: str, default: str) -> str:
    """Returns the text of a variable unchanged."""
    return os.environ.get(name, default)


def list_of(name: str, default: list[str]) -> list[str]:
    """Returns a variable's text, split at its commas. Returns an empty list for an empty text."""
    given = os.environ.get(name)
    if given is None:
        return default
    return given.split(",") if given else []


def switch(name: str, default: bool) -> bool:
    """Returns true for ``on``, ``true``, ``t``, ``yes``, ``y`` and ``1``, and false for their opposites."""
    given = os.environ.get(name)
    if given is None:
        return default
    if given.lower() not in _ON + _OFF:
        raise _unusable(name, given, "on or off")
    return given.lower() in _ON


def whole_number(name: str, default: _Default) -> int | _Default:
    """Returns a variable's text as a whole number."""
    given = os.environ.get(name)
    try:
        return default if given is None else int(given)
    except ValueError:
        raise _unusable(name, given, "a whole number") from None


def number(name: str, default: float) -> float:
    """Returns a variable's text as a finite number."""
    given = os.environ.get(name)
    try:
        found = default if given is None else float(given)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise _unusable(name, given, "a number")
    return found


def json_of(name: str, default: Any) -> Any:
    """Returns a variable's text, parsed as JSON."""
    given = os.environ.get(name)
    try:
        return default if given is None else json.loads(given)
    except ValueError as error:
        raise _unusable(name, given, f"JSON ({error})") from None


def _unusable(name: str, given: str | None, wanted: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{name} is {given!r}: write {wanted}.")
