"""Reads the tokens at which a page of a room begins: tokens of timelines and tokens of sync.

A token ``t412-90321`` is an event's place in its room, and a page begins beyond this event. A token of sync
(``s90321``, ``m90321~2.90400``, or the whole sync token) covers what a client had received. A page that goes back has
only events that the token covers. A page that goes forward has only later events.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connections

from events.declarations import EVENTS
from events.errors import BadToken
from events.reading.page_sql import LARGEST
from events.reading.timeline import timeline_place
from events.tokens.positions import events_token, read_events_token
from streams.core.tokens import RoomToken, VectorToken
from streams.errors import TokenError
from streams.reading.rows import writer_names

OLDEST = f"t0--{LARGEST}"
"""The token below every event of a room."""
_TEXT_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class Start:
    """The place beyond which a page begins.

    ``back``: the page goes back in time. ``covered`` is the vector of a sync token, which limits the page's events, or
    None if the page begins at an event, or at an end of the room.
    """

    topological: int
    stream: int
    back: bool = True
    covered: VectorToken | None = None


def start_of(token: str | None, *, back: bool, using: str = "default") -> Start:
    """Returns the start of a page.

    Raises ``BadToken``, and ``EpochChanged`` for a sync token from before a restore.

    A sync token that is ahead of this process's position is lowered to that position.
    """
    if token is None or (isinstance(token, str) and token.startswith("t")):
        return Start(*timeline_place(token), back)
    covered = _parsed(token, using).intersect(events_token(using))
    place = (LARGEST, LARGEST) if back else timeline_place(OLDEST)
    return Start(*place, back, covered)


def _parsed(token: str, using: str) -> VectorToken:
    try:
        if not isinstance(token, str) or len(token) > _TEXT_LIMIT:
            raise TokenError("A token is a string of a few dozen characters.")
        covered = (
            read_events_token(token, using) if "@" in token else RoomToken.parse(token, _names(token, using)).stream
        )
    except TokenError as error:
        raise BadToken(str(error)) from error
    if abs(covered.base) > LARGEST or any(position > LARGEST for position in covered.entries.values()):
        raise BadToken(f"{token!r:.100} names a position that no event can have.")
    return covered


def _names(token: str, using: str) -> dict[int, str]:
    if "~" not in token:
        return {}
    with connections[using].cursor() as cursor:
        return writer_names(cursor, EVENTS.name)
