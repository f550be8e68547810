"""Where a room's history is cut: at an event, a time or a timeline token. Archives and purges of history take these arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections

from events.arguments import can_be_stored
from events.errors import BadToken, UnknownEvent, UnknownRoom
from events.reading.timeline import timeline_place
from streams.jobs.arguments import Argument, OneOf, Type
from streams.jobs.errors import UnusableArguments
from streams.runtime.moments import FORMS

_CUTS = ("before", "before_time", "before_token")
_EVENT = "SELECT room_id, topological_ordering, outlier FROM events_event WHERE event_id = %s"
#: An event was sent before the time if its sender says so, or if it was received before the time, whatever its sender says.
_BEFORE = "(origin_server_ts < %(ms)s OR extract(epoch FROM received_at) * 1000 < %(ms)s)"
#: An event counts as sent after the time unless its sender's clock is known to be wrong: the event claims to be sent after it
#: was received. When it was sent is then unknown, so it neither goes by its own time nor keeps others.
_CLOCKS_DIFFER_MS = 3_600_000
_NOT_BEFORE = f"NOT {_BEFORE} AND origin_server_ts <= extract(epoch FROM received_at) * 1000 + {_CLOCKS_DIFFER_MS}"
#: The depth of the last event before the time, and the lowest event that is not before it. The cut is the lower of both depths.
#: Without the second, an event that claims to be old but lies high in the graph would take younger events below it along.
_AT_TIME = f"""
SELECT last.topological_ordering, kept.topological_ordering, kept.event_id
FROM (
    SELECT topological_ordering FROM events_event
    WHERE room_id = %(room)s AND NOT outlier AND {_BEFORE} ORDER BY stream_ordering DESC LIMIT 1
) AS last LEFT JOIN (
    SELECT topological_ordering, event_id FROM events_event
    WHERE room_id = %(room)s AND NOT outlier AND {_NOT_BEFORE} ORDER BY topological_ordering, stream_ordering LIMIT 1
) AS kept ON true
"""
_LEFT_BEHIND = f"""
SELECT count(*) FROM events_event WHERE room_id = %(room)s AND topological_ordering BETWEEN %(above)s + 1 AND %(upto)s
  AND state_key IS NULL AND NOT outlier AND {_BEFORE}
"""
_ROOM = "SELECT FROM events_room WHERE room_id = %s"
_DEEPEST_EXTREMITY = """
SELECT max(topological_ordering) FROM events_forwardextremity leaf JOIN events_event e USING (event_id) WHERE leaf.room_id = %s
"""


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
    cuts: dict[str, Any] = {"before": cut_at_event, "before_time": cut_at_time, "before_token": cut_at_token}
    return next((cuts[name](arguments["room"], arguments[name], using) for name in _CUTS if name in arguments), None)


def cut_at_event(room_id: str, event_id: str, using: str) -> int:
    """Returns the depth of an event of the room.

    Raises ``UnknownRoom``, and ``UnknownEvent`` if the event is not stored, is an outlier, or is of another room.
    """
    _check_room(room_id, using)
    found = _first(using, _EVENT, [event_id]) if can_be_stored(event_id) else None
    if found is None or found[0] != room_id or found[2]:
        raise UnknownEvent(f"{room_id} has no event {event_id!r:.300} with a place in its history.")
    return int(found[1])


class TimeCut(NamedTuple):
    """A cut at a time. ``last`` is the depth of the last event before the time.

    ``kept`` is the lowest event that is not before the time, if it keeps events before the time from being purged.
    """

    depth: int
    last: int
    kept: str | None


def cut_at_time(room_id: str, ms: int, using: str) -> int:
    """Returns the depth of the last event before a time, or 0 if there is no such event. Raises ``UnknownRoom``.

    ``ms`` are milliseconds since 1970. An event is before the time if ``origin_server_ts`` says so, or if it was received
    before. The last event is the last in stream order. If an event at or after ``ms`` has a lower depth, returns this
    lower depth. So a purge below the result deletes no event at or after ``ms``, except events that claim to be sent
    an hour or more after they were received: when these were sent is not known.
    """
    return find_time_cut(room_id, ms, using).depth


def find_time_cut(room_id: str, ms: int, using: str) -> TimeCut:
    """Returns the cut of ``cut_at_time``, and the reason if events before ``ms`` lie above it. Raises ``UnknownRoom``."""
    _check_room(room_id, using)
    found = _first(using, _AT_TIME, {"room": room_id, "ms": ms})
    if found is None:
        return TimeCut(0, 0, None)
    last, lowest, event_id = found
    return TimeCut(last, last, None) if lowest is None or lowest >= last else TimeCut(lowest, last, event_id)


def count_left_behind(room_id: str, ms: int, between: tuple[int, int], using: str) -> int:
    """Returns how many messages from before ``ms`` lie above the first and at or below the second of two depths."""
    names = {"room": room_id, "ms": ms, "above": between[0], "upto": between[1]}
    found = _first(using, _LEFT_BEHIND, names)
    return int(found[0]) if found is not None else 0


def cut_at_token(room_id: str, token: str, using: str) -> int:
    """Returns the depth that a timeline token contains. Raises ``UnknownRoom`` and ``BadToken``."""
    _check_room(room_id, using)
    return timeline_place(token)[0]


def _check_room(room_id: str, using: str) -> None:
    if not can_be_stored(room_id) or _first(using, _ROOM, [room_id]) is None:
        raise UnknownRoom(f"There is no room {room_id!r:.300}.")


def _first(using: str, statement: str, values: Any) -> Sequence[Any] | None:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, values)
        found: Sequence[Any] | None = cursor.fetchone()
    return found


def deepest_extremity(room_id: str, using: str) -> int | None:
    """Returns the depth of the room's deepest forward extremity, or null if the room has none."""
    found = _first(using, _DEEPEST_EXTREMITY, [room_id])
    return None if found is None else found[0]
