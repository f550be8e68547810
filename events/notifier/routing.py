"""Maps the rows of each stream to the entities that they concern (pure).

The notifier remembers these entities as changed, and wakes the callers that wait for them. A row concerns a *room* (all
its joined users), a *user* (that user alone), or a *contact* (a user, and all who share a room with them). Streams that
are not part of sync answers have no rule. ``NOT_ROUTED`` lists these streams, each with the reason. A new stream is
added by ``events.sync.providers.join_sync``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

from events.declarations import RESYNC_USER
from streams.core.invalidation import ROOM_STATE

__all__ = [
    "NOT_ROUTED",
    "Concern",
    "Concerns",
    "Target",
    "contact_in",
    "find_rule",
    "room_in",
    "route_stream",
    "routed_streams",
    "rule_of",
    "user_in",
]


class Target(Enum):
    ROOM = "room"
    USER = "user"
    CONTACT = "contact"


Concern = tuple[Target, str]
#: A rule: from a row in its wire form to the entities that it concerns.
Concerns = Callable[[Any], Iterable[Concern]]

_MEMBER = "m.room.member"

#: Streams whose rows concern no user, with the reason.
NOT_ROUTED: Mapping[str, str] = MappingProxyType(
    {
        "backfill": "older history is read by paging back",
        "presence_federation": "for other servers",
        "federation": "for other servers",
    }
)


def _of_events(row: Any) -> Iterable[Concern]:
    # ``["ev", [event, room, type, state key, …, membership, rejected]]`` or ``["state", [room, type, state key,
    # event]]``
    kind, values = row
    if kind == "ev":
        yield Target.ROOM, values[1]
        if values[2] == _MEMBER and values[3]:
            yield Target.USER, values[3]
    else:
        yield Target.ROOM, values[0]
        if values[1] == _MEMBER and values[2]:
            yield Target.USER, values[2]


def _of_caches(row: Any) -> Iterable[Concern]:
    # users whose next sync answer must be full, and users whose membership changed
    if row[0] == RESYNC_USER:
        yield from ((Target.USER, user) for user in row[1] or ())
    elif row[0] == ROOM_STATE:
        yield from ((Target.USER, user) for user in (row[1] or ())[1:])  # the first key is the room


def _by_place(kind: Target, place: Any) -> Concerns:
    def concerns(row: Any) -> Iterable[Concern]:
        entity = row[place]
        if isinstance(entity, str) and (kind is Target.ROOM or entity.startswith("@")):
            yield kind, entity

    return concerns


def room_in(place: Any) -> Concerns:
    """Returns the rule for rows that have a room ID at ``place``, an index or a field name."""
    return _by_place(Target.ROOM, place)


def user_in(place: Any) -> Concerns:
    """Returns the rule for rows that have a user ID at ``place``.

    A value that is no user ID, such as a server, is ignored.
    """
    return _by_place(Target.USER, place)


def contact_in(place: Any) -> Concerns:
    """Returns the rule for rows with a user ID at ``place`` that concern all who share a room with the user."""
    return _by_place(Target.CONTACT, place)


_PLAIN: Mapping[str, Concerns] = MappingProxyType(
    {
        "events": _of_events,
        "caches": _of_caches,
        "presence": contact_in(0),
        "typing": room_in(0),
        "receipts": room_in(0),
        "push_rules": user_in(0),
        "pushers": user_in(0),
        "device_lists": contact_in(0),
        "to_device": user_in(0),
        "tag_account_data": user_in(0),
        "account_data": user_in(0),
        "groups": user_in(1),
        "user_signature": user_in(0),
    }
)
_rules: dict[str, Concerns] = dict(_PLAIN)


def find_rule(stream: str) -> Concerns | None:
    """Returns the rule of a stream, or None if its rows concern no user."""
    return _rules.get(stream)


def rule_of(stream: str) -> Concerns:
    return _rules[stream]


def routed_streams() -> tuple[str, ...]:
    return tuple(_rules)


def route_stream(stream: str, concerns: Concerns) -> None:
    """Registers the rule of a site's own stream. Raises ``ValueError`` if the stream has one already."""
    if stream in _rules:
        raise ValueError(f"Stream {stream!r} has a rule already; register it once.")
    _rules[stream] = concerns
