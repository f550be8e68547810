"""First half of an import, on executors: parses rows of sources into the staging table of events (no Django).

Each part of a source is a unit of work with its own row in the ledger. A line that is no valid event goes to the
quarantine with a reason. No content of a source ends the job. The job ends only if a source cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from events.errors import EventRefused, Reason
from events.format.parsing import ParsedEvent, announced_version, parse_line, parse_row
from events.room.event_auth import as_seen_by, is_third_party_invite
from events.room.verification import KeyRing, check_signatures, proves_version
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
    """The parameters for staging parts, the same for all tasks of a job. Each task sets ``versions`` itself.

    If there are ``keys``, all events must be signed. Otherwise signatures are not checked.

    ``server`` is the site's server name. Events of the server's own users were accepted when they were made. So they
    are soft-failed only if the source says so.
    """

    job: int
    dsn: str
    limit_bytes: int
    keys: KeyRing | None = None
    server: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartScan:
    """The result of scanning a part.

    ``lines`` is the number of lines, including blank ones. ``versions`` are the room versions that create events
    announce.
    """

    lines: int
    versions: Mapping[str, str]


class StoredVersions(Mapping[str, str]):
    """A lazy map from room IDs to room versions.

    The version is that of the site's room, otherwise the one that the input announces. A room is looked up when the
    first event without a version is parsed. Length and iteration cover only rooms that were looked up.
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
    """Returns a line's place in the whole input. Places ascend by part, and within a part by line."""
    return part * LINES_PER_PART + line


def scan_part(part: Part, limit_bytes: int, keys: KeyRing | None = None) -> PartScan:
    """Counts the lines of a part, and collects the room versions that its create events announce.

    Events that come without a version, in whatever part, need these. If there are ``keys``, only signed create events
    count.
    """
    last = 0
    versions: dict[str, str] = {}
    for line in announcing_rows(part, limit_bytes):
        last = line.number
        if isinstance(line, Line) and (announced := _announced(line, keys)):
            versions.setdefault(*announced)
    return PartScan(last if part.rows is None else part.rows, versions)


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
    """Yields the parsed lines in batches, as (rows for the table of events, rows for the table of broken lines).

    A batch has at most some thousand lines.
    """
    events: Rows = []
    broken: Rows = []
    first = sequence_number(part, 0)
    for line in lines:
        if isinstance(line, Line):
            try:
                event = as_seen_by(_parse(line, work.versions, work.keys), work.server)
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
    # Such an invite may have no server's signature. So it does not count that the source says it was accepted: event
    # auth decides.
    if is_third_party_invite(event) and event.rejected_reason is None:
        return structs.replace(event, rejection_given=False)
    return event


def _check(event: ParsedEvent, keys: KeyRing) -> None:
    """Raises ``EventRefused`` if a required signature is missing, or if a create event does not prove its room's version."""
    (refusal,) = check_signatures([event], keys)
    if refusal is not None:
        raise refusal
    if event.type == "m.room.create" and not proves_version(event):
        detail = (
            f"{event.event_id} does not fit its hash, or is not of the room's server, or is not of version "
            f"{event.room_version}: nobody signed the room's version"
        )
        raise EventRefused(Reason.UNKNOWN_ROOM_VERSION, detail)


def _announced(line: Line, keys: KeyRing | None) -> tuple[str, str] | None:
    """Returns (room ID, room version) if the line is a create event, otherwise null.

    If there are ``keys``, an unsigned create event is ignored.
    """
    announced = announced_version(line.content, line.told)
    if announced is not None and keys is not None:
        try:
            _parse(line, {}, keys)
        except EventRefused:
            return None
    return announced


def _detail(refused: EventRefused, line: Line) -> str:
    """Returns the reason of a refusal as text.

    For a row of a table the text also names the event, because such rows have no line number to look up.
    """
    event_id = line.told.get("event_id") if line.told else None
    return _text(f"{event_id}: {refused.detail}" if event_id else refused.detail)


def _text(detail: str) -> str:
    """Returns the first 1,000 characters of ``detail``.

    NUL and lone surrogates are escaped, because a text column cannot store them.
    """
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
