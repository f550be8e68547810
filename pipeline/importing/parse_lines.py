"""First half of an import, on executors: rows of sources -> parsed events in the staging table (no Django).

Every part of a source is a piece of work with a ledger row of its own. A line that cannot be an event is put aside with
the reason; nothing in a source can end the job, but for the source itself being unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from events.errors import EventRefused, Reason
from events.format.parsing import ParsedEvent, announced_version, parse_line, parse_row
from events.room.event_auth import as_let_through, is_third_party_invite
from events.room.verification import KeyRing, check_signatures, tells_version
from pipeline.importing.packed_events import pack
from pipeline.importing.sources.inputs import announcing_rows, read_part
from pipeline.importing.sources.parts import HEAD_BYTES, BrokenLine, Line, Part
from pipeline.importing.staging_tables import (
    BROKEN,
    STAGED_EVENTS,
    STEPS,
    VERSIONS,
    copy_rows,
    staging_connection,
    table_name,
)

__all__ = ["LINES_PER_PART", "LineWork", "PartScan", "StoredVersions", "scan_part", "sequence_number", "stage_part"]

LINES_PER_PART = 2**32
_ROWS_PER_COPY = 2_000


@dataclass(frozen=True, slots=True)
class LineWork:
    """What a task needs to stage a part; the same for all tasks of a job. A task looks ``versions`` up by itself.

    With ``keys`` an event has to be signed, else signatures are not looked at. ``server`` is the site's name: events of its own
    users were let through when they were made.
    """

    job: int
    dsn: str
    limit_bytes: int
    keys: KeyRing | None = None
    server: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartScan:
    """What a first look at a part tells: its lines (blank ones too), and the room versions that its create events announce."""

    lines: int
    versions: Mapping[str, str]


class StoredVersions(Mapping[str, str]):
    """The versions of rooms that the site has, or that the input announces; each is asked for when a bare event needs it."""

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
        return True  # not empty, only not asked yet


def sequence_number(part: int, line: int) -> int:
    """The place of a line in the whole input, ascending."""
    return part * LINES_PER_PART + line


def scan_part(part: Part, limit_bytes: int, keys: KeyRing | None = None) -> PartScan:
    """Count the lines and collect versions, which bare events of other lines need; with ``keys`` from signed ones only."""
    last = 0
    versions: dict[str, str] = {}
    for line in announcing_rows(part, limit_bytes):
        last = line.number
        if isinstance(line, Line) and (announced := _announced(line, keys)):
            versions.setdefault(*announced)
    return PartScan(last if part.rows is None else part.rows, versions)


def stage_part(work: LineWork, number: int, part: Part) -> int:
    """Parse a part into the staging tables; returns how many lines it has read, 0 when that was done before."""
    with staging_connection(work.dsn) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table_name(work.job, STEPS.name)} (step, lines) VALUES (%s, 0) ON CONFLICT DO NOTHING",
            [f"part {number}"],
        )
        if not cursor.rowcount:
            return 0
        read = 0
        work = replace(work, versions=StoredVersions(cursor, work.job))
        for events, broken in _batches(work, number, read_part(part, work.limit_bytes)):
            copy_rows(cursor, work.job, STAGED_EVENTS, events)
            copy_rows(cursor, work.job, BROKEN, broken)
            read += len(events) + len(broken)
        cursor.execute(
            f"UPDATE {table_name(work.job, STEPS.name)} SET lines = %s WHERE step = %s", [read, f"part {number}"]
        )
    return read


Rows = list[Sequence[Any]]


def _batches(work: LineWork, part: int, lines: Iterable[Line | BrokenLine]) -> Iterator[tuple[Rows, Rows]]:
    """Rows of events and of broken lines, some thousand at a time."""
    events: Rows = []
    broken: Rows = []
    first = sequence_number(part, 0)
    for line in lines:
        if isinstance(line, Line):
            try:
                event = as_let_through(_parse(line, work.versions, work.keys), work.server)
            except EventRefused as refused:
                detail = _detail(refused, line)
                broken.append((first + line.number, str(refused.reason), detail, line.content[:HEAD_BYTES]))
            else:
                events.append(_row(first + line.number, event))
        else:
            broken.append((first + line.number, line.reason, _text(line.detail), line.head[:HEAD_BYTES]))
        if len(events) + len(broken) >= _ROWS_PER_COPY:
            yield events, broken
            events, broken = [], []
    yield events, broken


def _parse(line: Line, versions: Mapping[str, str], keys: KeyRing | None) -> ParsedEvent:
    told = line.told
    event = parse_line(line.content, versions) if told is None else parse_row(line.content, told, versions)
    if keys is None:
        return event
    _check(event, keys)
    if (
        is_third_party_invite(event) and event.rejected_reason is None
    ):  # perhaps nobody's server signed it: the rules look
        return structs.replace(event, rejection_given=False)
    return event


def _check(event: ParsedEvent, keys: KeyRing) -> None:
    """Raises ``EventRefused`` for what its servers did not sign."""
    (refusal,) = check_signatures([event], keys)
    if refusal is not None:
        raise refusal
    if event.type == "m.room.create" and not tells_version(event):
        detail = (
            f"{event.event_id} does not fit its hash, or is not of the room's server, or is not of version "
            f"{event.room_version}: nobody signed the room's version"
        )
        raise EventRefused(Reason.UNKNOWN_ROOM_VERSION, detail)


def _announced(line: Line, keys: KeyRing | None) -> tuple[str, str] | None:
    """The room and version of a create event that is to be believed."""
    announced = announced_version(line.content, line.told)
    if announced is not None and keys is not None:
        try:
            _parse(line, {}, keys)
        except EventRefused:
            return None
    return announced


def _detail(refused: EventRefused, line: Line) -> str:
    """Why; of a table's row also which event, since nobody counts its rows."""
    event_id = line.told.get("event_id") if line.told else None
    return _text(f"{event_id}: {refused.detail}" if event_id else refused.detail)


def _text(detail: str) -> str:
    """What a text column takes."""
    return detail.replace("\0", "\\0")[:1000].encode("utf-8", "backslashreplace").decode()


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
