"""Checks the sequences that number the rows of the site's tables, such as ``events_room_id_seq``, and repairs them.

A database that was moved by logical replication, or by a dump without sequences, has them all at their beginning. Then
each INSERT fails on a primary key that is taken. The sequences of streams' IDs are checked by
``streams.maintenance.check``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

from streams import registry
from streams.conf import stream_settings
from streams.core.sequences import is_altered_sql, last_values
from streams.db.sequences import move_forward
from streams.errors import StreamError

#: Sequences that a column of the tables owns, or that its default takes values from, with the last values they gave out. Not one
#: that somebody is altering: its value cannot be read.
_USED = f"""
SELECT DISTINCT ON (2, 3, 1) c.oid::regclass::text, t.oid::regclass::text, a.attname::text, quote_ident(a.attname),
       pg_sequence_last_value(s.seqrelid)
FROM (
    SELECT objid, refobjid, refobjsubid FROM pg_depend
    WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass AND deptype IN ('a', 'i')
    UNION ALL
    SELECT d.refobjid, f.adrelid, f.adnum FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid
    WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
) AS used (sequence_id, table_id, number)
JOIN pg_class c ON c.oid = used.sequence_id AND c.relkind = 'S' AND c.relname <> ALL (%(streams)s)
JOIN pg_sequence s ON s.seqrelid = c.oid AND s.seqincrement > 0
JOIN pg_class t ON t.oid = used.table_id AND t.relname = ANY (%(tables)s) AND pg_table_is_visible(t.oid)
JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = used.number
WHERE has_table_privilege(t.oid, 'SELECT') AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, 'SELECT') END
  AND NOT {is_altered_sql("c.oid")}
ORDER BY 2, 3, 1
"""


@dataclass(frozen=True, slots=True)
class TableFinding:
    """The result of the check for one column: the value of its sequence, and the highest number in the table."""

    table: str
    column: str
    sequence_name: str
    sequence: int
    highest_in_tables: int

    @property
    def well(self) -> bool:
        """Returns true if the next row gets a number that is not taken."""
        return self.sequence >= self.highest_in_tables

    @property
    def verdict(self) -> str:
        return "ok" if self.well else "sequence behind table"

    @property
    def fix(self) -> str:
        if self.well:
            return ""
        return f"move the sequence {self.sequence_name} to {self.highest_in_tables}: check_streams --repair"


def inspect_tables(cursor: Any) -> list[TableFinding]:
    """Checks the tables of all models of the site. Returns a finding for each column that is numbered by a sequence."""
    tables = connections[stream_settings().database].introspection.django_table_names(include_views=False)
    given = {
        "tables": [*tables, MigrationRecorder.Migration._meta.db_table],
        "streams": [stream.declaration.sequence for stream in registry.all_streams()],
    }
    cursor.execute(_USED, given)
    used = cursor.fetchall()
    if not used:
        return []
    cursor.execute("SELECT " + ", ".join(f"(SELECT max({column}) FROM {table})" for _, table, _, column, _ in used))
    found = [
        TableFinding(table, column, sequence, value or 0, number or 0)
        for (sequence, table, column, _, value), number in zip(used, cursor.fetchone(), strict=True)
    ]
    # A sequence that is still below a number that was read before is truly behind. Others gave out the number meanwhile, or were
    # set to their next value.
    behind = {f.sequence_name for f in found if not f.well}
    again = last_values(cursor, behind) if behind else {}
    return [replace(f, sequence=again.get(f.sequence_name, f.sequence)) for f in found]


def repair_tables(cursor: Any) -> Iterator[tuple[TableFinding, str]]:
    """Moves each sequence forward that is behind its table. Yields (finding, what was done) for each of these columns."""
    for finding in inspect_tables(cursor):
        if not finding.well:
            try:
                move_forward(cursor, finding.sequence_name, finding.highest_in_tables)
                value = last_values(cursor, [finding.sequence_name])[finding.sequence_name]
                done = f"sequence moved to {value}"
            except StreamError as error:  # the others can be repaired all the same
                done = f"not mended: {error}"
            yield finding, done
