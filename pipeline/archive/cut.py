"""Where a room's history is cut, as jobs and commands are told: at an event, a time or a timeline token."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from events.errors import BadToken
from events.maintenance.purge_history import cut_at_event, cut_at_time, cut_at_token
from events.reading.timeline import timeline_place
from pipeline.errors import UnusableArguments
from streams.runtime.moments import FORMS, moment_ms

__all__ = ["CUTS", "add_cut_options", "check_cut", "depth_of_cut"]

CUTS = ("before", "before_time", "before_token")
_LATEST = 2**63 - 1


def add_cut_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """``--before``, ``--before-time`` and ``--before-token``, of which one is given."""
    cut = parser.add_mutually_exclusive_group(required=required)
    cut.add_argument("--before", metavar="EVENT", help="everything of less depth than this event; that stays")
    cut.add_argument("--before-time", metavar="TIME", help=f"the same of the last event before this time: {FORMS}")
    cut.add_argument("--before-token", metavar="TOKEN", help="the same of the place of a timeline token (t412-90321)")


def check_cut(arguments: Mapping[str, Any], *, optional: bool = False) -> dict[str, Any]:
    """The one cut that is given, by its name; raises ``UnusableArguments``."""
    given = {name: arguments[name] for name in CUTS if arguments.get(name) is not None}
    if "before_time" in given:
        given["before_time"] = _milliseconds(given["before_time"])
    if len(given) > 1 or not (given or optional):
        raise UnusableArguments(f"Give one of {', '.join(CUTS)}.")
    for name, value in given.items():
        _check(name, value)
    return given


def _check(name: str, value: Any) -> None:
    if name == "before_time":
        return
    if not isinstance(value, str):
        raise UnusableArguments(f"{name} must be text, not {value!r:.100}.")
    if name == "before_token":
        try:
            timeline_place(value)
        except BadToken as error:
            raise UnusableArguments(str(error)) from error


def _milliseconds(value: Any) -> int:
    """Of an age what it is now, so that a dry run and the job that carries it out mean the same time."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LATEST:
        return value
    try:
        return moment_ms(value if isinstance(value, str) else "", time.time_ns() // 1_000_000)
    except ValueError:
        raise UnusableArguments(f"before_time must be {FORMS}, not {value!r:.100}.") from None


def depth_of_cut(arguments: Mapping[str, Any], using: str) -> int | None:
    """The depth that checked arguments name; null: none is given. Raises ``UnknownRoom``, ``UnknownEvent``, ``BadToken``."""
    room = arguments["room"]
    if "before" in arguments:
        return cut_at_event(room, arguments["before"], using)
    if "before_time" in arguments:
        return cut_at_time(room, arguments["before_time"], using)
    if "before_token" in arguments:
        return cut_at_token(room, arguments["before_token"], using)
    return None
