"""Reads a stream for processes that share it by key: first which facts exist, then the rows of the facts to handle.

A process sees the token and part of each fact once. It reads a fact's row when it has the fact's part, and handles it in the
same transaction. So all processes together read each row once, however many they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streams.core.declaration import FactTable, quoted
from streams.core.queries import bounds_sql, order_sql, read_whole, row_of, selected_sql, token_sql
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.errors import BadHandler
from streams.follow.handlers import Handler
from streams.follow.part_keys import key_sql, part_sql, short_key
from streams.follow.table_source import TableSource
from streams.replication.protocol.ordering import FollowedRow
from streams.writing.key_columns import FIX, loose_columns

#: Facts whose parts are read at a time.
WINDOW_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class KeyFact:
    """The rows of a fact that have one key. ``key`` is the short text of its value."""

    token: int
    part: int
    key: str
    rows: list[FollowedRow]


class PartSource(TableSource):
    """The source from which one process reads a stream that it shares."""

    def __init__(self, handler: Handler, using: str) -> None:
        super().__init__(handler, using)
        self._key = key_sql(self._declaration, handler.by)
        self._part = part_sql(self._key)
        (self._table,) = self._declaration.tables

    def first_token(self) -> VectorToken:
        """Returns what ``TableSource.first_token`` does. Raises ``BadHandler`` if the column cannot have keys."""
        stream, by = self._declaration.name, self._handler.by
        column = next(column.name for column in self._table.stored if column.key == by)
        with self._connection.cursor() as cursor:
            for _, problem in loose_columns(cursor, [(stream, self._table.name, column)]):
                raise BadHandler(f"Reader {self._handler.reader!r} of stream {stream!r}: by={by!r}: {problem}. {FIX}")
        return super().first_token()

    def look(self, after: int) -> int:
        """Returns the position up to which all facts are complete now."""
        with self._connection.cursor() as cursor:
            return self._read_target(cursor, VectorToken(after)).base

    def parts(self, after: int, upto: int) -> tuple[list[tuple[int, int]], int]:
        """Returns the facts of the range as pairs (token, part) in order, and the position up to which they were read."""
        declaration, table = self._declaration, self._table
        sql = (
            f"SELECT {token_sql(declaration, table)}, {self._part} FROM {quoted(table.name)} "
            f"WHERE {bounds_sql(declaration, table)} ORDER BY {order_sql(declaration, table)} LIMIT %(limit)s"
        )

        with self._connection.cursor() as cursor:

            def fetch(_: FactTable, limit: int) -> list[tuple[int, int]]:
                cursor.execute(sql, {"after": after, "upto": upto, "limit": limit})
                found: list[tuple[int, int]] = cursor.fetchall()
                return found

            reached, (found,) = read_whole(declaration, fetch, (after, upto), WINDOW_ROWS)
            check_not_trimmed(cursor, declaration.name, VectorToken(after), reader=self._handler.reader)
        return list(dict.fromkeys(found)), reached  # a fact may have several rows of one part

    def facts(self, wanted: Sequence[tuple[int, int]]) -> list[KeyFact]:
        """Returns the facts ``wanted``, given as pairs (token, part), in order. Facts that are deleted by now are left out."""
        declaration, table = self._declaration, self._table
        columns = [token_sql(declaration, table), self._part, self._key, quoted(table.writer_column)]
        then_by = f", {quoted(table.then_by)}" if table.then_by else ""
        sql = (
            f"SELECT {', '.join([*columns, *selected_sql(table)])} FROM {quoted(table.name)} "
            f"WHERE {quoted(table.id_column)} = ANY(%(ids)s::bigint[]){f' AND ({table.where})' if table.where else ''} "
            f"ORDER BY {order_sql(declaration, table)}{then_by}"
        )
        with self._connection.cursor() as cursor:
            cursor.execute(sql, {"ids": [token * declaration.sign for token, _ in wanted]})
            rows = cursor.fetchall()
        shape, is_wanted = row_of(table), set(wanted)
        facts: dict[tuple[int, str], KeyFact] = {}
        for token, part, text, writer, *values in rows:
            if (token, part) in is_wanted:
                key = short_key(text)
                row = FollowedRow(declaration.name, writer, token, shape(values))
                facts.setdefault((token, key), KeyFact(token, part, key, [])).rows.append(row)
        if len({(fact.token, fact.part) for fact in facts.values()}) < len(wanted):
            with self._connection.cursor() as cursor:  # after the rows, as in ``TableSource``
                after = VectorToken(wanted[0][0] - 1)
                check_not_trimmed(cursor, declaration.name, after, reader=self._handler.reader)
        return list(facts.values())
