"""Finds the position of a moment in a stream, and counts the facts of a range, by the index on the ID alone.

The only time that is stored of a fact is that of its INSERT, by the database's clock (``received_at``). The time of the
commit is not stored. IDs are in the order of these times, but for transactions that overlap: a transaction may reserve its
IDs first and insert later, by ``CLOCK_SKEW`` at most. If a clock was set back by more than that, or rows were stored later
with their former IDs, a fact may lie on the wrong side of the position.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson

from streams.core.declaration import StreamDeclaration, quoted
from streams.core.queries import bounds_sql, maximum_sql, order_sql, token_sql
from streams.core.tokens import VectorToken

CLOCK_SKEW = timedelta(minutes=5)
"""The most by which times of INSERTs may be out of the order of IDs."""
MOST_COUNTED = 1_000_000
"""The most rows of a table that are counted."""


@dataclass(frozen=True, slots=True)
class CountedFacts:
    """The stored facts of a range: their number, and ID and time of the first and the last one."""

    facts: int = 0
    is_whole: bool = True
    """False: there are more than ``facts``. They were not counted."""
    first: int = 0
    first_at: datetime | None = None
    last: int = 0


def position_before(cursor: Any, declaration: StreamDeclaration, moment: datetime, above: int = 0) -> int:
    """Returns the highest position above which lie all facts that were inserted at or after the moment.

    Facts up to the position ``above`` are not examined. If no fact is so new, returns the largest token of the tables.
    """
    cursor.execute(maximum_sql(declaration))
    highest = max(above, cursor.fetchone()[0])
    low, high = above, highest
    earlier = moment - CLOCK_SKEW
    while low < high:
        middle = (low + high) // 2
        found = first_fact(cursor, declaration, middle, high)
        if found is None or found[1] >= earlier:
            high = middle
        else:
            low = found[0]
    # From here on the rows are read one by one: those of ``CLOCK_SKEW``, and then the first that is new enough.
    found = first_fact(cursor, declaration, low, highest, moment)
    return highest if found is None else found[0] - 1


def first_fact(
    cursor: Any, declaration: StreamDeclaration, after: int, upto: int, since: datetime | None = None
) -> tuple[int, datetime] | None:
    """Returns (token, time) of the first fact after ``after``, or of the first one that was inserted at or after ``since``."""
    found = []
    for table in declaration.tables:
        token, received = token_sql(declaration, table), quoted(table.received_column)
        new_enough = f" AND {received} >= %(since)s" if since is not None else ""
        cursor.execute(
            f"SELECT {token}, {received} FROM {quoted(table.name)} WHERE {bounds_sql(declaration, table)}{new_enough} "
            f"ORDER BY {order_sql(declaration, table)} LIMIT 1",
            {"after": after, "upto": upto, "since": since},
        )
        found += cursor.fetchall()
    return min(found, default=None)


def count_facts(cursor: Any, declaration: StreamDeclaration, after: VectorToken, upto: VectorToken) -> CountedFacts:
    """Counts the stored facts that ``upto`` covers and ``after`` does not. Reads at most ``MOST_COUNTED`` rows of a table."""
    if after.base >= upto.highest:
        return CountedFacts()
    selects = [
        f"(SELECT {place} AS place, {token_sql(declaration, table)} AS token, {quoted(table.writer_column)} AS writer, "
        f"{quoted(table.received_column)} AS at FROM {quoted(table.name)} WHERE {bounds_sql(declaration, table)} "
        f"ORDER BY {order_sql(declaration, table)} LIMIT {MOST_COUNTED + 1})"
        for place, table in enumerate(declaration.tables)
    ]
    cursor.execute(
        f"""
        WITH read AS MATERIALIZED (SELECT * FROM ({" UNION ALL ".join(selects)}) AS tables),
        facts AS (
            SELECT token, min(at) AS at FROM read
            WHERE token > greatest(%(after)s::bigint, (%(after_of)s::jsonb ->> writer)::bigint)
              AND token <= greatest(%(upto_base)s::bigint, (%(upto_of)s::jsonb ->> writer)::bigint)
            GROUP BY token
        )
        SELECT count(*), min(token), (SELECT at FROM facts ORDER BY token LIMIT 1), max(token),
            (SELECT max(rows) FROM (SELECT count(*) AS rows FROM read GROUP BY place) AS tables)
        FROM facts
        """,
        {
            "after": after.base, "after_of": orjson.dumps(dict(after.entries)).decode(), "upto": upto.highest,
            "upto_base": upto.base, "upto_of": orjson.dumps(dict(upto.entries)).decode(),
        },
    )  # fmt: skip
    facts, first, first_at, last, rows = cursor.fetchone()
    return CountedFacts(facts, (rows or 0) <= MOST_COUNTED, first or 0, first_at, last or 0)
