"""SQL that formats RDATA lines in the database (pure): the broadcaster reads a writer's rows as one text of many lines.

The statement of `lines_sql` returns one row, here called *the result*: the text of all lines, the number of lines, the
number of facts, the last token, the length of the longest line in characters, and the position up to which rows were
read. The lines have the same form as those of `announcer.encode_rows`. The rows of a fact stay together, and only the
line of the last row has the token. The other lines of the fact have the word ``batch`` there. Each table is read up to
a limit of rows. If a table has more rows, some rows of the last fact may not have been read. So the text ends before
this fact, as in ``streams.core.queries.cut_whole_tokens``.

The statement of `plain_lines_sql` costs a third of the statement of `lines_sql`, because it goes over the rows once.
Its text is right only if each fact has one row. `plain_lines` makes a result of it. If the numbers of facts and lines
in this result are equal, each fact has one row. For a few facts, the statement of `few_rows_sql` costs even less. It
returns rows, and `few_lines` makes a result of these rows.

`encode_lines` turns a result into bytes. It returns None if Python has to read the rows instead: a line may be too long,
or a fact has more rows than the limit.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cache
from typing import Any

from streams.core.declaration import FactTable, StreamDeclaration, quoted
from streams.core.queries import bounds_sql, order_sql, token_sql
from streams.core.row_format import row_sql
from streams.replication.protocol.announcer import Lines, Read, position_line

#: Steps over at most this number of tokens are read with `few_rows_sql`. With more tokens, Python would spend more time on
#: the rows than PostgreSQL spends on joining them.
FEW_TOKENS = 64


def can_write_lines(declaration: StreamDeclaration, writer: str) -> bool:
    return writer.isascii() and lines_sql(declaration) is not None


@cache
def lines_sql(declaration: StreamDeclaration) -> str | None:
    """Returns the statement that formats lines, or None if only Python can build the rows of the stream.

    The statement's parameters are ``after``, ``upto``, ``writer``, ``limit`` and ``prefix``. ``prefix`` is the text
    ``RDATA stream writer ``.
    """
    selects, cuts = [], []
    for place, table in enumerate(declaration.tables):
        row = row_sql(table)
        if row is None:
            return None
        selects.append(f"rows{place} AS MATERIALIZED ({_rows_sql(declaration, table, place, row)})")
        cuts.append(f"SELECT max(token) AS last FROM rows{place} HAVING count(*) >= %(limit)s")
    union = " UNION ALL ".join(f"SELECT * FROM rows{place}" for place in range(len(declaration.tables)))
    return f"""
WITH {", ".join(selects)},
reached AS (SELECT coalesce(min(last) - 1, %(upto)s::bigint) AS reached FROM ({" UNION ALL ".join(cuts)}) AS cut),
whole AS (
    SELECT token, place, number, json, token = lead(token) OVER (ORDER BY token, place, number) AS more
    FROM ({union}) AS tables, reached WHERE token <= reached
),
lines AS (
    SELECT token, place, number, more IS NOT TRUE AS ends,
           %(prefix)s || CASE WHEN more THEN 'batch ' ELSE token || ' ' END || json || E'\\n' AS line
    FROM whole
)
SELECT string_agg(line, '' ORDER BY token, place, number), count(*), count(*) FILTER (WHERE ends), max(token),
       max(length(line)), (SELECT reached FROM reached)
FROM lines
"""


@cache
def plain_lines_sql(declaration: StreamDeclaration) -> str | None:
    """Returns the statement that formats lines of facts with one row each, or None for a stream of several tables.

    `plain_lines` turns the row that the statement returns into a result in the form of `lines_sql`. The statement has
    the parameters of `lines_sql`, but ``between`` in place of ``prefix``. ``between`` is a line feed and the prefix.
    PostgreSQL puts this text between the lines.
    """
    if (rows := few_rows_sql(declaration)) is None:
        return None
    # The index gives the rows in the order of their tokens, so from PostgreSQL 16 on neither aggregate sorts them again.
    return (
        "SELECT string_agg(token || ' ' || json, %(between)s::text ORDER BY token), count(*), count(DISTINCT token), "
        f"max(token), max(octet_length(json)) FROM ({rows}) AS found"
    )


def plain_lines(found: Sequence[Any], between: str, upto: int, limit: int) -> tuple[Any, ...]:
    """Turns ``found``, the row of `plain_lines_sql`, into a result in the form of `lines_sql` (see the module's docstring).

    If the result counts fewer facts than lines, some fact has several rows. Then the caller must not use the text of
    the lines. ``between``, ``upto`` and ``limit`` are the parameters with which the statement was executed.
    """
    text, count, facts, last, longest = found
    reached = upto
    if count >= limit:  # the last fact may have more rows
        reached = last - 1
        text, _, _ = text.rpartition(between)  # nothing within a line contains a line feed
        count, facts = count - 1, facts - 1
        last = int(text[text.rfind("\n") + 1 :].removeprefix(between[1:]).partition(" ")[0]) if count else None
    if not count:
        return None, 0, 0, None, None, reached
    return f"{between[1:]}{text}\n", count, facts, last, longest + len(between) + len(str(last)) + 1, reached


@cache
def few_rows_sql(declaration: StreamDeclaration) -> str | None:
    """Returns the statement that reads the rows of a stream of one table as (token, JSON), or None for other streams.

    The statement has the parameters of `lines_sql`, without ``prefix``.
    """
    (table, *others) = declaration.tables
    row = row_sql(table)
    if others or row is None:
        return None
    return (
        f"SELECT {token_sql(declaration, table)} AS token, {row} AS json FROM {quoted(table.name)} "
        f"WHERE {_condition(declaration, table)} ORDER BY {order_sql(declaration, table)} LIMIT %(limit)s"
    )


def few_lines(rows: Sequence[tuple[int, str]], prefix: str, upto: int) -> tuple[Any, ...]:
    """Turns the rows of `few_rows_sql` into a result in the form of `lines_sql` (see the module's docstring).

    ``upto`` must be the parameter with which the statement was executed. The range from ``after`` to ``upto`` must have
    fewer tokens than the ``limit`` of the statement. If the result counts fewer facts than lines, some fact has several
    rows, and rows may be missing. Then the caller must not use the text of the lines.
    """
    if not rows:
        return None, 0, 0, None, None, upto
    last, facts = rows[-1][0], len({token for token, _ in rows})
    text = "".join([f"{prefix}{token} {json}\n" for token, json in rows])
    return text, len(rows), facts, last, max(len(json) for _, json in rows) + len(f"{prefix}{last}") + 2, upto


def _condition(declaration: StreamDeclaration, table: FactTable) -> str:
    of_writer = "" if declaration.announced_as else f" AND {quoted(table.writer_column)} = %(writer)s"
    return f"{bounds_sql(declaration, table)}{of_writer}"


def _rows_sql(declaration: StreamDeclaration, table: FactTable, place: int, row: str) -> str:
    """Returns the SELECT for the rows of one table. ``row`` is the SQL that formats a row as JSON.

    The limit on the number of rows is applied in the order of the IDs, which the index gives without sorting. The rows
    of a fact are sorted only afterwards. So the limit may cut off rows of the last fact. The statement of `lines_sql`
    then leaves out this whole fact.
    """
    order = order_sql(declaration, table)
    within = f"ORDER BY token, {quoted(table.then_by)}" if table.then_by else ""
    columns = f"{token_sql(declaration, table)} AS token, {row} AS json" + (
        f", {quoted(table.then_by)}" if table.then_by else ""
    )
    return (
        f"SELECT token, {place} AS place, row_number() OVER ({within}) AS number, json FROM (SELECT {columns} "
        f"FROM {quoted(table.name)} WHERE {_condition(declaration, table)} ORDER BY {order} LIMIT %(limit)s) AS limited"
    )


def encode_lines(step: Read, result: Sequence[Any], limit_bytes: int) -> tuple[Lines, int] | None:
    """Returns (lines, position that they reach) from a result of this module, or None if Python has to read the rows.

    The module's docstring describes the result. ``limit_bytes`` is the length of the longest allowed line.
    """
    text, count, facts, last, longest, reached = result
    if reached <= step.after:
        return None
    lines = Lines(count=count, facts=facts, rows=count)
    if count:
        lines.data = text.replace("\x7f", "\\u007f").encode("ascii", "replsite.json")
        # PostgreSQL measured the lines before their characters were escaped. So its length of the longest line is right
        # only if no character was escaped.
        if len(lines.data) != len(text):
            longest = max(map(len, lines.data.splitlines(keepends=True)))
        if longest > limit_bytes + 1:
            return None
    if reached > (last or step.after):
        lines.data += position_line(step.stream, step.writer, last or step.after, reached)
        lines.count += 1
    return lines, reached


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Escapes characters outside ASCII as JSON does: six characters each, or twelve for a surrogate pair.

    This function is an error handler for ``str.encode``.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2)), error.end


codecs.register_error("replsite.json", _escape)
