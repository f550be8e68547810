"""Reads a token that a caller gives: a position, the list of IDs that ``append`` returned, a vector, or a token's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streams import epochs
from streams.core.tokens import VectorToken
from streams.errors import TokenError
from streams.reading.rows import writer_names

#: A position, the IDs of an append, a vector token, or a token in text form, with or without its epoch.
Token = int | VectorToken | str | Sequence[int]


def given_token(stream: str, token: Token) -> VectorToken | None:
    """Returns the vector for a token that a caller gave. Returns None for a text, which ``text_token`` reads.

    For a list of IDs, returns the vector of the highest ID. Raises ``TokenError`` for a value that is no token.
    """
    if isinstance(token, VectorToken):
        return token
    if isinstance(token, str):
        return None
    number = max(token, default=None) if isinstance(token, list | tuple) else token
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return VectorToken(number)
    raise TokenError(
        f"Stream {stream}: {token!r} is no token. Give a token's text (page.next, fact.token), a position, or the list "
        f"that append() returned."
    )


def text_token(cursor: Any, stream: str, text: str, epoch: str | None = None) -> VectorToken:
    """Returns the token of a text. Raises ``TokenError``, and ``EpochChanged`` if the text is of another epoch.

    ``epoch`` is the present one, if the caller has read it. Otherwise it is looked up, and begun if that is due.
    """
    plain, word = epochs.unstamp(text)
    if word:
        now = epochs.current_epoch(cursor) if epoch is None else epoch
        epochs.check_same(cursor, word, now, f"Token {text[:100]} of stream {stream}")
    names = writer_names(cursor, stream) if plain.startswith("m") else {}
    return VectorToken.parse(plain, names)


def base_of(text: str) -> int:
    """Returns the base of a token's text: the position up to which the token covers all writers."""
    return int(epochs.unstamp(text)[0].removeprefix("m").partition("~")[0])


def text_of(cursor: Any, stream: str, token: VectorToken, word: str) -> str:
    numbers = {name: number for number, name in writer_names(cursor, stream).items()} if token.entries else {}
    return epochs.stamp(token.text(numbers), word)
