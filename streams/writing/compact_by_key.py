"""Tables that keep only the newest row for each value of a column: the present state of each user, for instance.

An older row vanishes with the transaction that inserts a newer one; no row ever changes under its ID. Two transactions that
write the same value side by side must not both keep theirs, so a lock orders them between insert and delete: whoever
comes second sees the row of the first. In a transaction with a frozen snapshot it may not; then the next one cleans up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streams.db.driver import schema_mark

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from streams.core.declaration import FactTable
    from streams.facts import Fact

__all__ = ["keep_newest", "keep_newest_of"]

#: Locks per table, so that a batch of very many values does not need very many.
_LOCKS = 64

_LOCK = """
SELECT pg_advisory_xact_lock(hashtextextended(%(table)s, number))
FROM (SELECT DISTINCT hashtextextended(value, 0) & %(mask)s AS number FROM unnest(%(values)s::text[]) AS value ORDER BY 1)
    AS numbers
"""


def keep_newest(connection: BaseDatabaseWrapper, table: FactTable, facts: Sequence[Fact]) -> None:
    """Delete all but the newest row for each value that these facts have; in the transaction that inserted them."""
    values = sorted({str(getattr(fact, table.newest_per)) for fact in facts})
    with connection.cursor() as cursor:
        keep_newest_of(cursor, table, values)


def keep_newest_of(cursor: Any, table: FactTable, values: Sequence[str]) -> None:
    """Delete all but the newest row for each of these values; in the transaction that inserted rows with them."""
    parameters: dict[str, Any] = {
        "table": f"replsite.newest:{table.name}{schema_mark(cursor)}",
        "mask": _LOCKS - 1,
        "values": list(values),
    }
    cursor.execute(_LOCK, parameters)
    cursor.execute(
        f"""
        DELETE FROM {table.name} AS old USING (
            SELECT {table.newest_per} AS value, max({table.id_column}) AS id FROM {table.name}
            WHERE {table.newest_per} = ANY(%(values)s) GROUP BY 1
        ) AS newest
        WHERE old.{table.newest_per} = newest.value AND old.{table.id_column} < newest.id
        """,
        parameters,
    )
