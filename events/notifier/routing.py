"""Whom the rows of each stream concern (pure): what is remembered in memory, and who of those that wait is woken.

A row concerns a *room* (all who are joined), a *user* (that user alone), or a *contact* (a user, and all who share a room with
them). A stream that no sync answer is made of has no rule, and ``CONCERNS_NOBODY`` says why. A new stream joins with
``events.sync.providers.join_sync``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

from streams.core.invalidation import ROOM_STATE

__all__ = [
    "CONCERNS_NOBODY",
    "RESYNC_USER",
    "Concern",
    "Concerns",
    "Kind",
    "concerns_of",
    "contact_in",
    "followed",
    "room_in",
    "rule_of",
    "say_concerns",
    "user_in",
]


class Kind(Enum):
    """What an entity is."""

    ROOM = "room"
    USER = "user"
    CONTACT = "contact"


Concern = tuple[Kind, str]
#: From a row as it travels to those that it concerns.
Concerns = Callable[[Any], Iterable[Concern]]

#: Cache name of the rows of ``caches`` that say: the next answer to this user is a whole one.
RESYNC_USER = "resync_user"
_MEMBER = "m.room.member"

#: Streams that bring a user nothing.
CONCERNS_NOBODY: Mapping[str, str] = MappingProxyType(
    {
        "backfill": "older history is read by paging back",
        "presence_federation": "for other servers",
        "federation": "for other servers",
    }
)


def _of_events(row: Any) -> Iterable[Concern]:
    """``["ev", [event, room, type, state key, …, membership, rejected]]`` or ``["state", [room, type, state key, event]]``."""
    kind, values = row
    if kind == "ev":
        yield Kind.ROOM, values[1]
        if values[2] == _MEMBER and values[3]:
            yield Kind.USER, values[3]
    else:
        yield Kind.ROOM, values[0]
        if values[1] == _MEMBER and values[2]:
            yield Kind.USER, values[2]


def _of_caches(row: Any) -> Iterable[Concern]:
    """The marks that ask for a whole answer, and users whose membership changed, with or without an event."""
    if row[0] == RESYNC_USER:
        yield from ((Kind.USER, user) for user in row[1] or ())
    elif row[0] == ROOM_STATE:
        yield from ((Kind.USER, user) for user in (row[1] or ())[1:])


def _by_place(kind: Kind, place: int) -> Concerns:
    def concerns(row: Sequence[Any]) -> Iterable[Concern]:
        entity = row[place]
        if isinstance(entity, str) and (kind is Kind.ROOM or entity.startswith("@")):
            yield kind, entity

    return concerns


def room_in(place: int) -> Concerns:
    """The room ID stands at that place of the row."""
    return _by_place(Kind.ROOM, place)


def user_in(place: int) -> Concerns:
    """The user ID stands at that place of the row; what is no user (a server) is passed over."""
    return _by_place(Kind.USER, place)


def contact_in(place: int) -> Concerns:
    """As ``user_in``, for what all who share a room with the user see."""
    return _by_place(Kind.CONTACT, place)


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


def concerns_of(stream: str) -> Concerns | None:
    """The rule of a stream; None: it concerns nobody."""
    return _rules.get(stream)


def rule_of(stream: str) -> Concerns:
    """The rule of a stream that concerns somebody; raises ``KeyError`` for another."""
    return _rules[stream]


def followed() -> tuple[str, ...]:
    """The streams that concern somebody."""
    return tuple(_rules)


def say_concerns(stream: str, concerns: Concerns) -> None:
    """A stream of the site's own concerns users; raises ``ValueError`` when it is one that has a rule."""
    if stream in _rules:
        raise ValueError(f"Stream {stream!r} has said already whom its rows concern; say it once.")
    _rules[stream] = concerns
