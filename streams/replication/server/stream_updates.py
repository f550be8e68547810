"""What is answered to somebody who asks over HTTP for facts that it missed: rows of a range as one JSON object.

Everything is read in one snapshot, positions with it, so a row is told only when its writer's position covers it: whoever
asks beyond what a POSITION said gets what is complete now, never a fact with an earlier one still pending behind it.
Answers hold whole facts, some thousand rows, or some megabytes. Blocks; a connection of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from streams import registry
from streams.core.json_codec import encode_json
from streams.core.positions import linear_position
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.db import driver
from streams.reading import cache_feed
from streams.reading.rows import StoredPosition, stored_positions
from streams.replication.common.table_rows import RowPace, Wanted, table_rows
from streams.replication.protocol.ordering import FollowedRow

__all__ = ["ANSWER_LIMIT_BYTES", "ROWS_PER_ANSWER", "Question", "stream_updates"]

ROWS_PER_ANSWER = 5_000
#: An answer ends after the fact with which it grows beyond this.
ANSWER_LIMIT_BYTES = 4 * 1024 * 1024
#: A question that takes longer is answered with 503.
STATEMENT_LIMIT_MS = 20_000
#: Streams that 1.43 answers with its own position instead of the wanted one.
_ANSWERED_WITH_OWN_POSITION = frozenset({"presence_federation"})

#: Stream -> how many rows of it are read at a time.
_paces: dict[str, RowPace] = {}


@dataclass(frozen=True, slots=True)
class Question:
    """Facts of ``stream`` with after < token <= upto, of one writer or of all.

    ``with_instances``: each update carries its writer's name behind the row, which only our own followers ask for.
    """

    stream: str
    after: int
    upto: int
    instance: str | None = None
    with_instances: bool = False


def stream_updates(question: Question, using: str | None = None) -> bytes:
    """The body of the answer. Raises ``UnknownStream``, ``ResyncNeeded`` below the low-water mark, ``DatabaseError``."""
    declaration = registry.get(question.stream).declaration
    if question.after > question.upto and declaration.in_memory:
        question = replace(question, after=0)  # it was asked from a former life of the stream: everything is new
    if question.after >= question.upto:
        return _body([], question.upto, is_limited=False)
    instance = None if declaration.announced_as else question.instance  # told under one name, whoever wrote
    pace = _paces.setdefault(question.stream, RowPace())
    with closing(driver.direct_connection(using, application_name="replsite http catch-up")) as connection:
        driver.read_in_order(connection)
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True, autocommit=False)
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {STATEMENT_LIMIT_MS}")
            found = stored_positions(cursor, [question.stream])
            cache_feed.before_shown(found, using)
            stored = found.get(question.stream, {})
            wanted = Wanted(question.after, question.upto, [instance] if instance else None)
            rows, reached = table_rows(cursor, declaration, wanted, pace.limit(ROWS_PER_ANSWER))
            check_not_trimmed(cursor, question.stream, VectorToken(max(question.after, 0)), instance)
    pace.learn(rows)
    complete = (row for row in rows if _is_complete(row, stored))
    updates, cut_at = _encoded(complete, declaration.announced_as, with_instances=question.with_instances)
    reached = min(reached, cut_at) if cut_at is not None else reached
    if reached < question.upto:
        return _body(updates, reached, is_limited=True)
    return _body(updates, _told_position(question, stored), is_limited=False)


def _is_complete(row: FollowedRow, stored: Mapping[str, StoredPosition]) -> bool:
    position = stored.get(row.instance)
    return position is None or row.token <= position.position


def _told_position(question: Question, stored: Mapping[str, StoredPosition]) -> int:
    if question.stream not in _ANSWERED_WITH_OWN_POSITION:
        return question.upto
    head = max((one.position for one in stored.values()), default=linear_position(()))
    return max(question.after, min(question.upto, head))


def _encoded(rows: Iterable[FollowedRow], announced_as: str, *, with_instances: bool) -> tuple[list[bytes], int | None]:
    """The updates; and the token of the last one when the answer was cut at its size."""
    found: list[bytes] = []
    size = last = 0
    for token, fact in groupby(rows, lambda row: row.token):
        if size > ANSWER_LIMIT_BYTES:
            return found, last
        for row in fact:
            update: list[Any] = [token, row.row, *([announced_as or row.instance] if with_instances else [])]
            found.append(encode_json(update))
            size += len(found[-1])
        last = token
    return found, None


def _body(updates: list[bytes], upto: int, *, is_limited: bool) -> bytes:
    return b'{"updates":[%s],"upto_token":%d,"limited":%s}' % (
        b",".join(updates),
        upto,
        b"true" if is_limited else b"false",
    )
