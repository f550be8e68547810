"""SQL that formats RDATA lines in the database (pure): the broadcaster reads a writer's rows as one piece of text.

The statement of `lines_sql` returns one row: the text of all lines, the number of lines, the number of facts, the last
token, the length of the longest line in characters, and the position reached. The rules are those of
`announcer.encode_rows` and ``streams.core.queries.cut_whole_tokens``. Rows of a fact stay together, and all of them but
the last have ``batch`` in place of the token. If the limit cuts the rows of a table, the text ends before the last fact
read from that table, because some rows of this fact may be missing.

`take_lines` turns the row into bytes. It returns null if Python has to read the rows instead: a line may be too long,
or a fact has more rows than the limit.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cache
from typing import Any

from streams.core.declaration import FactTable, StreamDeclaration
from streams.core.queries import bounds_sql, order_sql, token_sql
from streams.core.row_format import row_sql
from streams.replication.protocol.announcer import Lines, Read, position_line

__all__ = ["can_write_lines", "lines_sql", "take_lines"]

#: Most characters that one character becomes when it is escaped: six in the Basic Multilingual Plane, twelve beyond it.
_LARGEST_GROWTH = 12


def can_write_lines(declaration: StreamDeclaration, writer: str) -> bool:
    """Returns true if the database can format this stream's lines for that writer."""
    return writer.isascii() and lines_sql(declaration) is not None


@cache
def lines_sql(declaration: StreamDeclaration) -> str | None:
    """Returns the statement that formats lines, or null if only Python can build the rows of the stream.

    Its parameters are ``after``, ``upto``, ``writer``, ``limit`` and ``prefix``, which is ``RDATA stream writer ``.
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
said AS (
    SELECT token, place, number, json, token = lead(token) OVER (ORDER BY token, place, number) AS more
    FROM ({union}) AS tables, reached WHERE token <= reached
),
lines AS (
    SELECT token, place, number, more IS NOT TRUE AS ends,
           %(prefix)s || CASE WHEN more THEN 'batch ' ELSE token || ' ' END || json || E'\\n' AS line
    FROM said
)
SELECT string_agg(line, '' ORDER BY token, place, number), count(*), count(*) FILTER (WHERE ends), max(token),
       max(length(line)), (SELECT reached FROM reached)
FROM lines
"""


def _rows_sql(declaration: StreamDeclaration, table: FactTable, place: int, row: str) -> str:
    """Returns the SELECT for the rows of one table. ``row`` is the SQL that formats a row as JSON.

    The limit is applied in the order of the ID alone, which the index gives without sorting. The rows of a fact are
    sorted only after the limit. The limit may cut a fact, but then the statement of `lines_sql` leaves out the whole
    fact.
    """
    order = order_sql(declaration, table)
    of_writer = "" if declaration.announced_as else f" AND {table.writer_column} = %(writer)s"
    within = f"ORDER BY token, {table.then_by}" if table.then_by else ""
    columns = f"{token_sql(declaration, table)} AS token, {row} AS json" + (
        f", {table.then_by}" if table.then_by else ""
    )
    return (
        f"SELECT token, {place} AS place, row_number() OVER ({within}) AS number, json FROM (SELECT {columns} "
        f"FROM {table.name} WHERE {bounds_sql(declaration, table)}{of_writer} ORDER BY {order} LIMIT %(limit)s) AS limited"
    )


def take_lines(step: Read, result: Sequence[Any], limit_bytes: int) -> tuple[Lines, int] | None:
    """Returns the lines in a result of `lines_sql` and the position reached, or null if Python has to read the rows."""
    text, count, facts, last, longest, reached = result
    if reached <= step.after:
        return None
    lines = Lines(count=count, facts=facts, rows=count)
    if count:
        # PostgreSQL counts characters before they are escaped. So the longest line is known only in plain ASCII; DEL is
        # ASCII, but is escaped too. Otherwise the largest growth is assumed, and Python looks at the rows if in doubt.
        is_plain = text.isascii() and "\x7f" not in text
        if longest * (1 if is_plain else _LARGEST_GROWTH) > limit_bytes + 1:
            return None
        lines.data = text.replace("\x7f", "\\u007f").encode("ascii", "replsite.json")
    if reached > (last or step.after):
        lines.data += position_line(step.stream, step.writer, last or step.after, reached)
        lines.count += 1
    return lines, reached


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Escapes characters outside ASCII as JSON does: six characters each, or twelve for a surrogate pair.

    It is an error handler for ``str.encode``.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2)), error.end


codecs.register_error("replsite.json", _escape)
