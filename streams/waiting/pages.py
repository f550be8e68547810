"""Reads facts in pages, as model instances: forwards from a token, or backwards from a token or from the newest fact.

The position is read first, then the rows at or below it, so no fact is missed however transactions overlap
(``streams.waiting.current``). Facts are in the order of their IDs, over all writers. In the transaction of a
``TestCase`` the facts of the test count as committed (``streams.db.testcase``).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from django.db import connections

from streams import epochs
from streams.core.queries import read_whole
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.db import driver, testcase
from streams.db.readable import instances
from streams.errors import BadLimit
from streams.facts import all_rows
from streams.reading.given_token import Token, given_token, text_of, text_token
from streams.waiting.current import current

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from streams.core.bound import BoundStream
    from streams.core.declaration import FactTable

LARGEST_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Page:
    """Some whole facts of a stream.

    ``next`` is the token from which the next page continues, also if this page has no facts. Pass it as ``after=``, or
    as ``before=`` if the page was read with ``newest=True``. ``at_end`` is true if the stream had no fact beyond this
    page.
    """

    facts: list[Any]
    next: str
    at_end: bool


@driver.advising()
def page_after(
    stream: BoundStream,
    after: Token | None,
    limit: int,
    using: str,
    only: Mapping[str, Any] | None = None,
    seen: int = 0,
) -> Page:
    """Returns the first facts after the token, ascending. If ``after`` is None, begins at the start of the stream.

    ``only`` restricts the facts, as a filter of the model's queries. ``seen`` is a stored position that this process
    knows. If it lies after the token, the page ends there, and the position is not read. Raises ``TokenError``,
    ``EpochChanged``, ``BadLimit``, and ``ResyncNeeded`` if facts after the token were trimmed.
    """
    _check_limit(stream, limit)
    with connections[using].cursor() as cursor:
        start, word = _given(cursor, stream, after)
        # The position is read before the rows. In the other order, the rows are read, fact 5 commits, its position is
        # stored and read, and the next page begins after fact 5, which is not among the rows.
        upto = seen if seen > start.base else complete_position(cursor, stream, using)
        word = word or epochs.stored_epoch(cursor)  # the first look at a new database begins its first epoch
        rows, reached = _rows(stream, (start.base, upto), limit, using, only)
        if after is not None:  # checked after the rows were read: a trim before the reading is always noticed
            check_not_trimmed(cursor, stream.name, start)
        if start.entries:
            rows = [(token, fact) for token, fact in rows if not start.covers(fact.instance_name, token)]
        reached = max(reached, start.base)
        return Page(
            _with_tokens(rows, word),
            text_of(cursor, stream.name, VectorToken.of(reached, start.entries), word),
            at_end=reached >= upto,
        )


@driver.advising()
def page_before(
    stream: BoundStream, before: Token | None, limit: int, using: str, only: Mapping[str, Any] | None = None
) -> Page:
    """Returns the last facts before the token, newest first. If ``before`` is None, begins at the end of the stream.

    The fact at the token itself is not returned. Raises ``TokenError``, ``EpochChanged`` or ``BadLimit``.
    """
    _check_limit(stream, limit)
    with connections[using].cursor() as cursor:
        limit_token, word = _given(cursor, stream, before)
        upto = complete_position(cursor, stream, using)
        word = word or epochs.stored_epoch(cursor)
        newest = upto if before is None else min(upto, limit_token.base - 1)
        rows, reached = _rows(stream, (-newest - 1, -1), limit, using, only)
        last = -rows[-1][0] if rows else upto if before is None else limit_token.base
        tokens = [(-token, fact) for token, fact in rows]
        return Page(_with_tokens(tokens, word), epochs.stamp(str(last), word), at_end=reached >= -1)


@driver.advising()
def end_token(stream: BoundStream, using: str) -> str:
    with connections[using].cursor() as cursor:
        return epochs.stamp(str(complete_position(cursor, stream, using)), epochs.stored_epoch(cursor))


def position_of(stream: BoundStream, token: Token, using: str) -> int:
    """Returns the highest position in a token. Raises ``TokenError`` or ``EpochChanged``."""
    found = given_token(stream.name, token)
    if found is None:
        with connections[using].cursor() as cursor:
            found = _given(cursor, stream, token)[0]
    return found.highest


def reached_in_test(stream: BoundStream, token: Token, using: str) -> VectorToken | None:
    """Returns the stream's position in a test's transaction if this position covers the token, else None."""
    with connections[using].cursor() as cursor:
        given, _ = _given(cursor, stream, token)
        at = complete_position(cursor, stream, using)
    return VectorToken(at) if given.highest <= at else None


def complete_position(cursor: Any, stream: BoundStream, using: str) -> int:
    """Returns the position up to which every fact of every writer is complete, as this process sees it."""
    connection = connections[using]
    if not testcase.is_in_test(connection):
        return current(stream, using).linear
    lowest = testcase.lowest_open(connection, stream.name)
    return max(stream.sequence_value(cursor), stream.declaration.empty_position) if lowest is None else lowest - 1


def _check_limit(stream: BoundStream, limit: int) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= LARGEST_LIMIT:
        raise BadLimit(f"Stream {stream.name}: limit={limit!r} is not a number of facts; give 1 to {LARGEST_LIMIT}.")


def _given(cursor: Any, stream: BoundStream, token: Token | None) -> tuple[VectorToken, str]:
    word = epochs.stored_epoch(cursor)
    if token is None:
        return VectorToken(0), word
    found = given_token(stream.name, token)
    if found is None:
        found = text_token(cursor, stream.name, str(token), word)
    return found, word


def _rows(
    stream: BoundStream, bounds: tuple[int, int], limit: int, using: str, only: Mapping[str, Any] | None
) -> tuple[list[tuple[int, Any]], int]:
    """Returns (token or negated token, fact) of whole facts with ``after < place <= upto``, and the place that was reached.

    A *place* is a token, or a negated token to read backwards. Facts are in ascending order of place. At most ``limit``
    instances are returned, unless the first fact alone has more instances.
    """
    after, upto = bounds
    if upto <= after:
        return [], upto
    by_table = {model._meta.db_table: model for model in stream.models}

    def fetch(table: FactTable, most: int) -> list[tuple[int, Any]]:
        query = all_rows(by_table[table.name], using).filter(**(only or {}))
        return _of_table(stream.sign, query, table, bounds, most)

    reached, batches = read_whole(stream.declaration, fetch, bounds, limit + 1)
    merged: list[tuple[int, Any]] = list(heapq.merge(*batches, key=itemgetter(0)))
    kept: list[tuple[int, Any]] = []
    for _, rows in groupby(merged, itemgetter(0)):
        whole = list(rows)
        if kept and len(kept) + len(whole) > limit:
            return kept, kept[-1][0]
        kept += whole
    return kept, reached


def _of_table(
    sign: int, query: QuerySet[Any], table: FactTable, bounds: tuple[int, int], most: int
) -> list[tuple[int, Any]]:
    after, upto = bounds
    model = query.model
    id_field = getattr(model, "id_field", table.id_column)
    sign = -sign if after < 0 else sign  # IDs are ``sign`` times the place
    low, high = ("gt", "lte") if sign > 0 else ("lt", "gte")
    query = query.filter(**{f"{id_field}__{low}": sign * after, f"{id_field}__{high}": sign * upto})
    if table.where:
        query = query.extra(where=[f"({table.where})"])  # noqa: S610 - from a declaration, never from input
    # Sorted by the ID alone, which the index provides; the rows of each fact are sorted here (``queries.rows_sql``).
    facts = instances(query.order_by(id_field if sign > 0 else f"-{id_field}")[:most])
    found = [(sign * getattr(fact, id_field), fact) for fact in facts]
    if table.then_by:
        attribute = next(field.attname for field in model._meta.concrete_fields if field.column == table.then_by)
        found.sort(key=lambda row: (row[0], getattr(row[1], attribute)))
    return found


def _with_tokens(rows: list[tuple[int, Any]], word: str) -> list[Any]:
    for token, fact in rows:
        fact._token = epochs.stamp(str(token), word)
    return [fact for _, fact in rows]
