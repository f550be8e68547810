"""Searches the facts of a stream by ID, time, key or content, the newest first.

IDs and keys have indexes, and the position of a time is found by that of the IDs. A part of a value has none: a search for it
reads rows for a bounded time (``content_search``), and the page goes on below them by itself. Facts with a value that *equals*
the text and has an index are shown at once, however old they are.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.db import connections

from replsite.dashboard.content_search import equal_tokens, search_content, trimmed_to
from streams.db.consistent_read import limited_waits, read_only_snapshot
from streams.db.readable import instances
from streams.errors import StreamError
from streams.facts import Fact, all_rows
from streams.reading.positions_by_time import first_fact, position_before
from streams.runtime.moments import moment_of
from streams.stream_object import Stream

FACTS_PER_PAGE = 50
NAMES = ("id", "until", "key", "text")
_MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a search came: to the ID ``lowest``, that of a fact of the time ``at``. The stream has ``first`` to ``last``."""

    lowest: int
    at: datetime | None
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class FoundFacts:
    """Facts, the newest first.

    ``older`` is the query string of the next page, or empty. ``equal`` are facts with a value that equals the text that was
    searched; they are found again where their turn comes. ``reached`` is given if a search for a content ended before the last
    row although there was place for more.
    """

    facts: Sequence[Fact]
    older: str = ""
    equal: Sequence[Fact] = ()
    reached: Reached | None = None


class Unusable(ValueError):
    """A search that cannot be done. The message says what to write instead."""


def search(stream: Stream, asked: Mapping[str, str]) -> FoundFacts | None:
    """Returns the facts that fit, or None if nothing is asked for. Raises ``Unusable``.

    ``id`` is the highest ID. ``until`` is a time: facts that were inserted before it. ``key`` is a value of the stream's key.
    ``text`` is a part of a fact's values, in any case.
    """
    given = {name: asked.get(name, "").strip() for name in NAMES}
    if not any(given.values()):
        return None
    for name, text in given.items():
        if len(text) > _MOST_CHARACTERS or "\x00" in text:
            raise Unusable(f"The {name} has at most {_MOST_CHARACTERS} characters, and no NUL.")
    if given["key"] and given["text"]:
        raise Unusable("Search for a key or for a text, not for both.")
    upto = _upto(stream, given)
    if given["text"]:
        return _of_content(stream, given, upto)
    try:
        key = _key(stream, given["key"]) if given["key"] else None
        page = stream.read(newest=True, limit=FACTS_PER_PAGE, before=None if upto is None else upto + 1, key=key)
    except StreamError as error:
        raise Unusable(str(error)) from error
    older = "" if page.at_end or not page.facts else _query(stream, given, _token(page.facts[-1]) - 1)
    return FoundFacts(page.facts, older)


def _upto(stream: Stream, given: Mapping[str, str]) -> int | None:
    """Returns the highest token that may fit, or None if each may."""
    if text := given["id"]:
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise Unusable("An ID is a whole number.")
        return int(text)
    if not given["until"]:
        return None
    try:
        moment = moment_of(given["until"], time.time_ns() // 1_000_000)
    except ValueError as error:
        raise Unusable(str(error)) from error
    with connections[stream.database].cursor() as cursor:
        return position_before(cursor, stream.declaration, moment)


def _key(stream: Stream, text: str) -> Any:
    if not stream.declaration.key:
        raise Unusable(f"{stream.name} has no key.")
    field: Any = stream.models[0]._meta.get_field(stream.declaration.key)
    try:
        return getattr(field, "target_field", field).to_python(text)
    except ValidationError as error:
        raise Unusable(" ".join(error.messages)) from error


def _of_content(stream: Stream, given: Mapping[str, str], upto: int | None) -> FoundFacts:
    newest = stream.read(newest=True, limit=1).facts  # nothing above it is complete
    highest = _token(newest[0]) if newest else 0
    upto = highest if upto is None else min(highest, upto)
    equal = [] if given["id"] else _equal(stream, given["text"], upto)
    with limited_waits(stream.database, read_only_snapshot), connections[stream.database].cursor() as cursor:
        part = search_content(cursor, stream.declaration, given["text"], upto, FACTS_PER_PAGE)
        facts = _facts(stream, part.tokens)
        if not part.more:
            return FoundFacts(facts, equal=equal)
        older = _query(stream, given, part.left)
        if part.is_full:
            return FoundFacts(facts, older, equal=equal)
        lowest, at = first_fact(cursor, stream.declaration, part.left, highest) or (part.left + 1, None)
        return FoundFacts(facts, older, equal, Reached(lowest, at, trimmed_to(cursor, stream.declaration) + 1, highest))


def _equal(stream: Stream, text: str, upto: int) -> list[Fact]:
    """Returns facts with a value that equals the text, by the key's index and all other indexes that begin with a column."""
    found: dict[tuple[type[Fact], Any], Fact] = {}
    if stream.declaration.key:
        with suppress(Unusable, StreamError):
            key = _key(stream, text)
            for fact in stream.read(newest=True, limit=FACTS_PER_PAGE, before=upto + 1, key=key).facts:
                found[type(fact), fact.pk] = fact
    with limited_waits(stream.database, read_only_snapshot), connections[stream.database].cursor() as cursor:
        for fact in _facts(stream, equal_tokens(cursor, stream.declaration, text, upto)):
            found[type(fact), fact.pk] = fact
    return sorted(found.values(), key=_token, reverse=True)[:FACTS_PER_PAGE]


def _facts(stream: Stream, tokens: Collection[int]) -> list[Fact]:
    numbers = [token * stream.sign for token in tokens]
    found = [
        fact
        for model in stream.models
        for fact in instances(all_rows(model, stream.database).filter(**{f"{model.id_field}__in": numbers}))
    ]
    return sorted(found, key=_token, reverse=True)


def _token(fact: Fact) -> int:
    return abs(int(getattr(fact, fact.id_field)))


def _query(stream: Stream, given: Mapping[str, str], upto: int) -> str:
    names = {name: text for name, text in given.items() if text and name not in ("id", "until")}
    return urlencode({"stream": stream.name} | names | {"id": upto})
