"""Searches the facts of a stream by ID, time, key or content, the newest first.

IDs and keys have indexes, and the position of a time is found by that of the IDs. Content has none: a search for it reads
rows as text for ``SEARCH_SECONDS``, and the page leads on below them. So each answer takes a bounded time, however large the
stream and its rows are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import orjson
from django.core.exceptions import ValidationError
from django.db import connections

from streams.core.declaration import FactTable, quoted
from streams.core.queries import bounds_sql, order_sql, token_sql
from streams.db.consistent_read import read_only_snapshot
from streams.db.readable import instances
from streams.errors import StreamError
from streams.facts import Fact, all_rows
from streams.reading.positions_by_time import position_before
from streams.runtime.moments import moment_of
from streams.stream_object import Stream

FACTS_PER_PAGE = 50
#: A search for a content begins no further statement after this time. A statement reads so many rows of each table.
SEARCH_SECONDS = 0.1
ROWS_AT_ONCE = 4_000
NAMES = ("id", "until", "key", "text")
_MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class FoundFacts:
    """Facts, the newest first.

    ``older`` is the query string of the next page, or empty. If a search for a content ended before the last row,
    ``examined`` is the number of rows that were read, from the ID ``highest`` down to ``lowest``.
    """

    facts: Sequence[Fact]
    older: str = ""
    examined: int = 0
    highest: int = 0
    lowest: int = 0


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
    highest = left = min(_token(newest[0]) if newest else 0, 2**63 - 1 if upto is None else upto)
    patterns = _patterns(given["text"])
    tokens: list[int] = []
    examined, end = 0, time.monotonic() + SEARCH_SECONDS
    with read_only_snapshot(stream.database), connections[stream.database].cursor() as cursor:
        while left > 0 and len(tokens) <= FACTS_PER_PAGE and not (examined and time.monotonic() > end):
            some: set[int] = set()
            floor = 0
            for table in stream.declaration.tables:  # each at most as far down as the one before
                values: dict[str, Any] = {
                    "after": max(floor - 1, 0),
                    "upto": left,
                    "patterns": patterns,
                    "rows": ROWS_AT_ONCE,
                }
                cursor.execute(_content_sql(stream, table), values)
                found, lowest, rows = cursor.fetchone()
                some.update(found or ())
                examined += rows
                if rows >= ROWS_AT_ONCE:
                    floor = max(floor, lowest)
            tokens += sorted((token for token in some if token >= floor), reverse=True)
            left = floor - 1
        shown = tokens[:FACTS_PER_PAGE]
        facts = [fact for model in stream.models for fact in _facts(stream, model, shown)]
    facts.sort(key=_token, reverse=True)
    if len(tokens) > len(shown):
        return FoundFacts(facts, _query(stream, given, shown[-1] - 1))
    if left > 0:
        return FoundFacts(facts, _query(stream, given, left), examined, highest, left + 1)
    return FoundFacts(facts)


def _patterns(text: str) -> list[str]:
    """Returns the patterns of which one fits a row's JSON if a value has the text, as it is or as a JSON string has it."""
    escaped = orjson.dumps(text).decode()[1:-1]
    return ["%" + part.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_") + "%" for part in {text, escaped}]


def _content_sql(stream: Stream, table: FactTable) -> str:
    """Returns the query for one row: the tokens of rows that fit, the lowest token that was read, the number of rows read.

    The newest rows are read by the index on the ID, and only these are made texts. All rows of the lowest token are read, so
    that the next statement begins below it. A column may have the table's name.
    """
    declaration, name = stream.declaration, quoted(table.name)
    newest = (
        f"SELECT {token_sql(declaration, table)} AS token, to_jsonb({name}.*)::text AS content FROM {name} "
        f"WHERE {bounds_sql(declaration, table)} ORDER BY {order_sql(declaration, table, newest_first=True)} "
        "FETCH FIRST %(rows)s ROWS WITH TIES"
    )
    return (
        f"SELECT (array_agg(token) FILTER (WHERE content ILIKE ANY (%(patterns)s))), coalesce(min(token), 0), count(*) "
        f"FROM ({newest}) AS newest"
    )


def _facts(stream: Stream, model: Any, tokens: Sequence[int]) -> list[Fact]:
    found = all_rows(model, stream.database).filter(**{f"{model.id_field}__in": [t * stream.sign for t in tokens]})
    return list(instances(found))


def _token(fact: Fact) -> int:
    return abs(int(getattr(fact, fact.id_field)))


def _query(stream: Stream, given: Mapping[str, str], upto: int) -> str:
    names = {name: text for name, text in given.items() if text and name not in ("id", "until")}
    return urlencode({"stream": stream.name} | names | {"id": upto})
