"""Parses the arguments that say where to cut a room's history: at an event, a time or a timeline token.

Jobs and commands that archive or purge history have these arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from events.errors import BadToken
from events.maintenance.purge_history import cut_at_event, cut_at_time, cut_at_token
from events.reading.timeline import timeline_place
from streams.jobs.arguments import Argument, OneOf, Type
from streams.jobs.errors import UnusableArguments
from streams.runtime.moments import FORMS

__all__ = ["check_cut", "cut_arguments", "depth_of_cut"]

_CUTS = ("before", "before_time", "before_token")


def cut_arguments(*, required: bool) -> tuple[Argument, ...]:
    """Returns the arguments ``before``, ``before_time`` and ``before_token``.

    A user may give at most one of the three. If ``required``, the user must give exactly one.
    """
    one_of = OneOf(required)
    return (
        Argument(
            "before", Type.TEXT, "everything of less depth than this event; that stays", typed="--before EVENT",
            in_form="the ID of an event: what lies below it; one of the three", omitted=True, one_of=one_of,
        ),
        Argument(
            "before_time", Type.MOMENT, f"the same of the last event before this time: {FORMS}",
            typed="--before-time TIME", in_form="a time in UTC: what is older", omitted=True, one_of=one_of,
        ),
        Argument(
            "before_token", Type.TEXT, "the same of the place of a timeline token (t412-90321)",
            typed="--before-token TOKEN", in_form="a token of the room's timeline: what lies below it", omitted=True,
            one_of=one_of,
        ),
    )  # fmt: skip


def check_cut(checked: Mapping[str, Any], *, optional: bool = False) -> None:
    """Raises ``UnusableArguments`` if more than one of the arguments ``before…`` is given, or if a token is malformed.

    Unless ``optional`` is true, also raises ``UnusableArguments`` if none of these arguments is given.
    """
    given = [name for name in _CUTS if checked[name] is not None]
    if len(given) > 1 or not (given or optional):
        raise UnusableArguments(f"Give one of {', '.join(_CUTS)}.")
    if "before_token" in given:
        try:
            timeline_place(checked["before_token"])
        except BadToken as error:
            raise UnusableArguments(str(error)) from error


def depth_of_cut(arguments: Mapping[str, Any], using: str) -> int | None:
    """Returns the depth at which the checked arguments cut the room's history. Events below this depth are in the older part.

    Returns None if none of the arguments ``before…`` is given.

    Raises ``UnknownRoom``, ``UnknownEvent`` and ``BadToken``.
    """
    room = arguments["room"]
    if "before" in arguments:
        return cut_at_event(room, arguments["before"], using)
    if "before_time" in arguments:
        return cut_at_time(room, arguments["before_time"], using)
    if "before_token" in arguments:
        return cut_at_token(room, arguments["before_token"], using)
    return None
