"""Converts sync tokens and stream positions between objects and the text that clients get.

The text has the epoch of the database, and numbers in place of writers' instance names. Tables store the epoch, and the
number of each writer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.db import connections

from events.declarations import EVENTS
from events.tokens.sync_token import SyncToken
from streams import registry
from streams.conf import stream_settings
from streams.core.tokens import RoomToken, VectorToken
from streams.epochs import check_epoch, current_epoch
from streams.errors import TokenError

__all__ = ["current_token", "events_token", "read_events_token", "read_token", "room_text", "token_text"]


#: The numbers that stand for writers in the text form of tokens, of all streams.
_NUMBERS = "SELECT stream, id, instance_name FROM streams_streamposition"


def current_token(streams: Collection[str] = (EVENTS.name,), using: str | None = None) -> SyncToken:
    """Returns a token with the current positions of these streams in this process.

    An answer with this token has to include all facts up to these positions. So call this before the snapshot of the
    answer is taken (``streams.db.consistent_read``).
    """
    parts = {name: registry.get(name).current(using).token() for name in streams}
    with _cursor(using) as cursor:
        return SyncToken(parts, current_epoch(cursor))


def events_token(using: str | None = None) -> VectorToken:
    return registry.get(EVENTS.name).current(using).token()


def token_text(token: SyncToken, using: str | None = None) -> str:
    if not any(part.entries for part in token.parts.values()):
        return token.text(lambda stream: {})
    numbers = _numbers(using)
    known = {stream: _without_unknown(part, numbers.get(stream, {})) for stream, part in token.parts.items()}
    return token.replace(**known).text(lambda stream: numbers.get(stream, {}))


def read_token(text: object, using: str | None = None) -> SyncToken:
    """Returns the token of a text.

    Raises ``TokenError``, and ``EpochChanged`` after a restore.

    A text without an epoch is refused with ``TokenError``, because every token that was given out has one.
    """
    numbers = _numbers(using) if isinstance(text, str) and "~" in text else {}

    def names(stream: str) -> Mapping[int, str] | None:
        if registry.find(stream) is None:
            return None
        return {number: name for name, number in numbers.get(stream, {}).items()}

    token = SyncToken.parse(text, names)
    shown = f"Sync token {str(text)[:60]!r}"
    if not token.epoch:
        raise TokenError(f"{shown} names no epoch, so it was not handed out here. Start a new sync, without a token.")
    with _cursor(using) as cursor:
        check_epoch(cursor, token.epoch, shown)
    return token


def read_events_token(since: str | SyncToken | VectorToken, using: str | None = None) -> VectorToken:
    """Returns the position in the stream ``events``, from any form of token. Raises the errors of ``read_token``."""
    if isinstance(since, VectorToken):
        return since
    token = since if isinstance(since, SyncToken) else read_token(since, using)
    found = token.of(EVENTS.name)
    if found is None:
        raise TokenError("The sync token has no part of the stream 'events'; begin with an initial sync.")
    return found


def room_text(token: VectorToken, using: str | None = None) -> str:
    """Returns the text of a token for one room (``s5``, ``m5~1.7``), which ``timeline(before=…)`` accepts."""
    numbers = _numbers(using).get(EVENTS.name, {}) if token.entries else {}
    return RoomToken(_without_unknown(token, numbers)).text(numbers)


def _without_unknown(token: VectorToken, numbers: Mapping[str, int]) -> VectorToken:
    # Writers that have no number for tokens yet. Clients get the newest facts of these a second time later, but miss
    # none.
    return VectorToken(token.base, {writer: at for writer, at in token.entries.items() if writer in numbers})


def _numbers(using: str | None) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    with _cursor(using) as cursor:
        cursor.execute(_NUMBERS)
        for stream, number, writer in cursor.fetchall():
            found.setdefault(stream, {})[writer] = number
    return found


def _cursor(using: str | None) -> Any:
    return connections[using or stream_settings().database].cursor()
