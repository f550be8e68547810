"""Parses the lines and rows of a source. Each becomes an event, or a broken line with the reason. Needs no Django.

No content of a source raises an error. An error is raised only if the source cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from events.errors import EventRefused, Reason
from events.format.parsing import LINE_LIMIT_BYTES, ParsedEvent, announced_version, parse_line, parse_row
from events.room.event_auth import as_seen_by, is_third_party_invite
from events.room.verification import KeyRing, check_signatures, proves_version
from pipeline.frames.sources.inputs import announcing_rows
from pipeline.frames.sources.parts import HEAD_BYTES, BrokenLine, Line, Part
from streams.runtime.text import storable

__all__ = ["LineRules", "PartScan", "parse_lines", "scan_part"]


@dataclass(frozen=True, slots=True)
class LineRules:
    """The rules for parsing lines, the same for all tasks.

    ``versions`` maps room IDs to room versions. This version is used for an event whose line names no version. If
    ``keys`` is given, all events must have valid signatures. Otherwise signatures are not checked.

    ``server`` is the site's server name. Events of this server's users were accepted when they were made. So such an
    event is soft-failed only if the source says that it is.
    """

    limit_bytes: int = LINE_LIMIT_BYTES
    keys: KeyRing | None = None
    server: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartScan:
    """The result of scanning a part.

    ``lines`` is the number of lines, including blank lines. ``versions`` maps room IDs to the room versions that create
    events announce.
    """

    lines: int
    versions: Mapping[str, str]


def scan_part(part: Part, limit_bytes: int, keys: KeyRing | None = None) -> PartScan:
    """Counts the lines of a part, and collects the room versions that its create events announce.

    A line that names no room version can only be parsed with the version in the room's create event. That event may be
    in another part of the source. If ``keys`` is given, create events without a valid signature are ignored.
    """
    last = 0
    versions: dict[str, str] = {}
    for line in announcing_rows(part, limit_bytes):
        last = line.number
        if isinstance(line, Line) and (announced := _announced(line, keys)):
            versions.setdefault(*announced)
    return PartScan(last if part.rows is None else part.rows, versions)


def parse_lines(lines: Iterable[Line | BrokenLine], rules: LineRules) -> Iterator[tuple[int, ParsedEvent] | BrokenLine]:
    """Yields (line number, event) for each line. For a line that is no valid event, yields a ``BrokenLine``.

    The texts of a ``BrokenLine`` are shortened and escaped, so that a text column can store them.
    """
    for line in lines:
        if isinstance(line, Line):
            try:
                yield line.number, as_seen_by(_parse(line, rules.versions, rules.keys), rules.server)
            except EventRefused as refused:
                event_id = line.given.get("event_id") if line.given else None  # a row of a table has no line number
                detail = storable(f"{event_id}: {refused.detail}" if event_id else refused.detail)[:1000]
                yield BrokenLine(line.number, str(refused.reason), detail, line.content[:HEAD_BYTES])
        else:
            yield BrokenLine(line.number, line.reason, storable(line.detail)[:1000], line.head[:HEAD_BYTES])


def _parse(line: Line, versions: Mapping[str, str], keys: KeyRing | None) -> ParsedEvent:
    given = line.given
    event = parse_line(line.content, versions) if given is None else parse_row(line.content, given, versions)
    if keys is None:
        return event
    _check(event, keys)
    # Such an invite may have no server's signature. So it does not count that the source says it was accepted: event
    # auth decides.
    if is_third_party_invite(event) and event.rejected_reason is None:
        return structs.replace(event, rejection_given=False)
    return event


def _check(event: ParsedEvent, keys: KeyRing) -> None:
    """Raises ``EventRefused`` if a required signature is missing or wrong.

    Also raises ``EventRefused`` for a create event whose signature does not cover the room version.
    """
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
    """Returns (room ID, room version) if the line is a create event, otherwise None.

    If ``keys`` is given, returns None for a create event without a valid signature.
    """
    announced = announced_version(line.content, line.given)
    if announced is not None and keys is not None:
        try:
            _parse(line, {}, keys)
        except EventRefused:
            return None
    return announced
