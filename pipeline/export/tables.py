"""Defines the tables of an export, their columns, and how the day of a row is found (pure).

The day of a row is that of its event, by the event's own clock, in UTC. Servers may claim any time. So the day is null
if it is before ``FIRST_DAY`` or after the day of the export. This bounds the number of days, and so the number of
folders.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["FIRST_DAY", "MOST_PARTITIONS", "TABLES", "ExportedTable", "buckets_for", "room_bucket"]

#: 2014-01-01, some months before the first Matrix server.
FIRST_DAY = 16_071
MOST_PARTITIONS = 10_000
"""The largest number of folders of one table. The table has about as many files as folders."""
MOST_BUCKETS = 256
_ROWS_PER_FILE = 200_000
_BUCKETS_OF_FEW = 16
"""Buckets that even a small export may have, so that its rooms are separated too."""

#: Outliers have no place in the room's history. But after a purge of history the current state may consist of them.
_MEMBERSHIP = (
    "e.type = 'm.room.member' AND e.state_key IS NOT NULL AND e.rejected_reason IS NULL "
    "AND (NOT e.outlier OR c.event_id = e.event_id)"
)
_TEXT, _NUMBER, _BOOLEAN, _JSON = "string", "int64", "bool", "json"


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """A table of an export, with the SQL that reads the table's rows from the database.

    ``columns`` holds (name, kind, SQL expression) of each column. The table is read in pieces. Each piece is a range of
    values of the column ``key``. ``day`` is the SQL expression for the day of a row, counted from 1970.

    A column of kind ``json`` is bytes in the database and text in the export. If the column ``redacted`` of a row is
    true, the exported JSON is the pruned form of the event.
    """

    name: str
    source: str
    key: str
    columns: Sequence[tuple[str, str, str]]
    where: str = "true"
    room: str = "e.room_id"
    day: str | None = "e.origin_server_ts / 86400000"
    order: Sequence[str] = ("room_id",)

    def conditions(
        self, rooms: Sequence[str] | None, since: int | None, until: int | None
    ) -> tuple[str, dict[str, object]]:
        """Returns (SQL condition for the rows to export, values of the named parameters in the condition).

        The rows to export belong to ``rooms``, and their day is at least ``since`` and less than ``until``. For each of
        the three, None means no limit.
        """
        parts, values = [self.where], dict[str, object]()
        if rooms is not None:
            parts.append(f"{self.room} = ANY(%(rooms)s::text[])")
            values["rooms"] = list(rooms)
        if self.day is not None:
            for name, sign, day in (("since", ">=", since), ("until", "<", until)):
                if day is not None:
                    parts.append(f"{self.day} {sign} %({name})s")
                    values[name] = day
        return " AND ".join(f"({part})" for part in parts), values

    def day_sql(self, last_day: int) -> str:
        """Returns the SQL expression for the day of a row. It is null for days before ``FIRST_DAY`` and after ``last_day``."""
        return f"CASE WHEN {self.day} BETWEEN {FIRST_DAY} AND {last_day} THEN ({self.day})::integer END"


_EVENT = (
    ("event_id", _TEXT, "e.event_id"),
    ("room_id", _TEXT, "e.room_id"),
    ("type", _TEXT, "e.type"),
    ("state_key", _TEXT, "e.state_key"),
    ("sender", _TEXT, "e.sender"),
    ("origin_server_ts", _NUMBER, "e.origin_server_ts"),
)
_STORED_JSON = (
    ("redacted", _BOOLEAN, "e.redacted_by IS NOT NULL"),
    ("room_version", _TEXT, "j.room_version"),
    ("json", _JSON, "j.json"),
)
TABLES: Mapping[str, ExportedTable] = {
    table.name: table
    for table in (
        ExportedTable(
            "rooms",
            "events_room r",
            "hashtext(r.room_id)::bigint",
            (
                ("room_id", _TEXT, "r.room_id"),
                ("room_version", _TEXT, "r.room_version"),
                ("creator", _TEXT, "r.creator"),
                ("create_event_id", _TEXT, "r.create_event_id"),
                ("current_state_unresolved", _BOOLEAN, "r.current_state_unresolved"),
                ("visibility_unresolved", _BOOLEAN, "r.visibility_unresolved"),
            ),
            room="r.room_id",
            day=None,
        ),
        ExportedTable(
            "events",
            "events_event e LEFT JOIN events_eventjson j USING (event_id)",
            "e.stream_ordering",
            (
                *_EVENT,
                ("stream_ordering", _NUMBER, "e.stream_ordering"),
                ("topological_ordering", _NUMBER, "e.topological_ordering"),
                ("received_at_ms", _NUMBER, "floor(extract(epoch FROM e.received_at) * 1000)::bigint"),
                ("membership", _TEXT, "e.membership"),
                ("redacts", _TEXT, "e.redacts"),
                ("relates_to", _TEXT, "e.relates_to"),
                ("outlier", _BOOLEAN, "e.outlier"),
                ("rejected_reason", _TEXT, "e.rejected_reason"),
                ("soft_failed", _BOOLEAN, "e.soft_failed"),
                *_STORED_JSON,
            ),
            order=("room_id", "stream_ordering"),
        ),
        ExportedTable(
            "state",
            "events_currentstate c JOIN events_event e USING (event_id) LEFT JOIN events_eventjson j USING (event_id)",
            "c.id",
            (*_EVENT, ("membership", _TEXT, "c.membership"), *_STORED_JSON),
            room="c.room_id",
            order=("room_id", "type", "state_key"),
        ),
        ExportedTable(
            "memberships",
            "events_event e LEFT JOIN events_currentstate c "
            "ON c.room_id = e.room_id AND c.type = e.type AND c.state_key = e.state_key",
            "e.stream_ordering",
            (
                ("room_id", _TEXT, "e.room_id"),
                ("user_id", _TEXT, "e.state_key"),
                ("membership", _TEXT, "e.membership"),
                ("sender", _TEXT, "e.sender"),
                ("event_id", _TEXT, "e.event_id"),
                ("origin_server_ts", _NUMBER, "e.origin_server_ts"),
                ("stream_ordering", _NUMBER, "e.stream_ordering"),
                ("soft_failed", _BOOLEAN, "e.soft_failed"),
                ("is_current", _BOOLEAN, "c.event_id IS NOT DISTINCT FROM e.event_id"),
            ),
            where=_MEMBERSHIP,
            order=("room_id", "stream_ordering"),
        ),
    )
}


def buckets_for(rows: int, rooms: int, days: int) -> int:
    """Returns the number of buckets for the rooms of a table.

    Small tables get few buckets. The number is limited so that no table gets more than ``MOST_PARTITIONS`` folders.
    """
    by_size = -(-rows // (_ROWS_PER_FILE * max(days, 1)))
    wanted = min(max(by_size, _BUCKETS_OF_FEW), max(rooms, 1))
    return max(1, min(wanted, MOST_BUCKETS, MOST_PARTITIONS // max(days, 1)))


def room_bucket(room_id: str, buckets: int) -> int:
    """Returns the bucket of a room, the same as Spark's ``pmod(crc32(room_id), buckets)``."""
    return zlib.crc32(room_id.encode()) % buckets
