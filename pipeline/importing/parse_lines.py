"""Parses the lines and rows of an import's sources into staging tables. Runs in Spark's executors. Needs no Django.

Each part of a source is staged in one transaction, with its own row in the ledger. A line that is no valid event goes
to the quarantine with a reason. No content of a source makes the job fail. The job fails only if a source cannot be
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from events.format.parsing import ParsedEvent
from pipeline.frames.parse_lines import LineRules, parse_lines
from pipeline.frames.sources.inputs import read_part
from pipeline.frames.sources.parts import BrokenLine, Line, Part
from pipeline.importing.packed_events import pack
from pipeline.importing.staging_tables import (
    BROKEN,
    STAGED_EVENTS,
    STEPS,
    VERSIONS,
    copy_rows,
    staging_connection,
    table_name,
)

__all__ = ["LINES_PER_PART", "LineWork", "StoredVersions", "sequence_number", "stage_part"]

LINES_PER_PART = 2**32
_ROWS_PER_COPY = 2_000


@dataclass(frozen=True, slots=True)
class LineWork:
    """The parameters for staging parts, the same for all tasks of a job. Each task fills in the room versions of ``rules``."""

    job: int
    dsn: str
    rules: LineRules


class StoredVersions(Mapping[str, str]):
    """A lazy map from room IDs to room versions.

    If the site has the room, the version is that of the site's room. Otherwise it is the version that the input
    announces. A room is looked up in the database when the first of its events without a version is parsed. Length and
    iteration cover only rooms that were looked up.
    """

    def __init__(self, cursor: Any, job: int) -> None:
        self._cursor = cursor
        self._sql = (
            "SELECT coalesce((SELECT room_version FROM events_room WHERE room_id = %(room)s), "
            f"(SELECT room_version FROM {table_name(job, VERSIONS.name)} WHERE room_id = %(room)s))"
        )
        self._asked: dict[str, str | None] = {}

    def __getitem__(self, room_id: str) -> str:
        if room_id not in self._asked and "\0" not in room_id:
            self._cursor.execute(self._sql, {"room": room_id})
            self._asked[room_id] = self._cursor.fetchone()[0]
        found = self._asked.get(room_id)
        if found is None:
            raise KeyError(room_id)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(room_id for room_id, version in self._asked.items() if version is not None)

    def __len__(self) -> int:
        return sum(version is not None for version in self._asked.values())

    def __bool__(self) -> bool:
        return True  # len() is 0 until the first lookup, but the map is not empty


def sequence_number(part: int, line: int) -> int:
    """Returns the place of a line in the whole input. Places ascend by part, and within a part by line number."""
    return part * LINES_PER_PART + line


def stage_part(work: LineWork, number: int, part: Part) -> int:
    """Parses a part into the staging tables. Returns the number of lines read, or 0 if the part was staged before."""
    with staging_connection(work.dsn) as connection, connection.cursor() as cursor:
        # Attempts A and B of one task: B's insert waits for A's transaction. If A commits, B finds the row and does nothing.
        # If A fails, its rows and its ledger row are rolled back together, and B stages the part.
        cursor.execute(
            f"INSERT INTO {table_name(work.job, STEPS.name)} (step, lines) VALUES (%s, 0) ON CONFLICT DO NOTHING",
            [f"part {number}"],
        )
        if not cursor.rowcount:
            return 0
        read = 0
        rules = replace(work.rules, versions=StoredVersions(cursor, work.job))
        for events, broken in _batches(rules, number, read_part(part, rules.limit_bytes)):
            copy_rows(cursor, work.job, STAGED_EVENTS, events)
            copy_rows(cursor, work.job, BROKEN, broken)
            read += len(events) + len(broken)
        cursor.execute(
            f"UPDATE {table_name(work.job, STEPS.name)} SET lines = %s WHERE step = %s", [read, f"part {number}"]
        )
    return read


Rows = list[Sequence[Any]]


def _batches(rules: LineRules, part: int, lines: Iterable[Line | BrokenLine]) -> Iterator[tuple[Rows, Rows]]:
    """Parses the lines. Yields batches of (rows for the table of events, rows for the table of broken lines).

    A batch has at most some thousand lines.
    """
    events: Rows = []
    broken: Rows = []
    first = sequence_number(part, 0)
    for parsed in parse_lines(lines, rules):
        if isinstance(parsed, BrokenLine):
            broken.append((first + parsed.number, parsed.reason, parsed.detail, parsed.head))
        else:
            number, event = parsed
            events.append(_row(first + number, event))
        if len(events) + len(broken) >= _ROWS_PER_COPY:
            yield events, broken
            events, broken = [], []
    yield events, broken


def _row(place: int, event: ParsedEvent) -> Sequence[Any]:
    return (
        place,
        event.room_id,
        event.room_version,
        event.event_id,
        event.type,
        event.outlier,
        event.content_hash_matches,
        event.stream_ordering,
        pack(event),
        event.json,
    )
