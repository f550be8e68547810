"""The sections of a report as tables of texts, worst first (pure). The terminal and the page show the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from pipeline.doctor.report import REASONS, Finding, Report, StreamState
from streams.runtime.amounts import byte_size, counted

__all__ = ["OfOneReason", "Section", "by_reason", "finding_lines", "sections", "summary"]

_MOST_TABLES, _MOST_ROOMS = 15, 30


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a title. ``about`` is a sentence below the title. ``numbers`` are the indexes of columns with numbers."""

    title: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class OfOneReason:
    """The findings of one reason. ``total`` counts those that are not listed, too."""

    reason: str
    meaning: str
    findings: Sequence[Finding]
    total: int


def by_reason(report: Report) -> Iterator[OfOneReason]:
    """Yields the findings by reason, the worst first."""
    for reason, same in groupby(report.findings, attrgetter("reason")):
        found = list(same)
        yield OfOneReason(reason, REASONS[reason], found, len(found) + report.more.get(reason, 0))


def finding_lines(finding: Finding) -> Iterator[str]:
    """Yields the lines below the text of a finding: event, key, values, rule, remedy."""
    if finding.event_id:
        yield f"event: {finding.event_id}"
    if finding.key:
        yield f"entry: {finding.key}"
    if finding.stored is not None or finding.computed is not None:
        yield f"stored {finding.stored or 'nothing'}, should be {finding.computed or 'nothing'}"
    if finding.rule:
        yield f"rule: {finding.rule}"
    if finding.fix:
        yield f"remedy: {finding.fix}"


def sections(report: Report) -> Iterator[Section]:
    """Yields the sections that have rows."""
    for section in (
        _streams(report), _remedies(report), _rooms(report), _tables(report), _piled_up(report),
    ):  # fmt: skip
        if section.rows:
            yield section


def summary(report: Report) -> Iterator[str]:
    """Yields sentences with the totals."""
    rooms = f"{counted(report.rooms_total, 'room')}"
    if report.empty_rooms is not None:
        rooms += f", of which {report.empty_rooms:,} have no user of this server"
    yield f"{rooms}; {byte_size(sum(table.bytes for table in report.tables))} in {len(report.tables)} tables."
    if (groups := report.groups) is not None:
        about = "about " if groups.is_estimated else ""
        yield (
            f"{about.capitalize()}{counted(groups.groups, 'state group')} with {counted(groups.rows, 'row')}, "
            f"{groups.rows_per_event:.1f} for each of {groups.events:,} events. {about.capitalize()}{groups.unreferenced:,} of "
            f"the groups, with {counted(groups.unreferenced_rows, 'row')}, are needed by no event."
        )
    if (checked := report.checked) is not None:
        rate = f", {checked.events / checked.seconds:,.0f} events/s" if checked.seconds else ""
        yield (
            f"{counted(checked.rooms, 'room')} computed again: {counted(checked.events, 'event')}, {checked.groups:,} state "
            f"groups{rate}. {checked.given_states:,} states were given by other servers, and are taken as they are."
        )
        if checked.rows:
            yield (
                f"The groups that events need have {counted(checked.rows, 'row')} of state; {checked.rows_needed:,} would be "
                "enough, as this program stores them."
            )
        for remark, times in sorted(checked.remarks.items()):
            yield f"Not decided: {remark} ({times:,})."
    if report.background_updates:
        yield f"Background updates of the server are not finished: {', '.join(report.background_updates)}."
    for table, part in report.sampled.items():
        yield f"Of {table}, {100 * part:.2g} % of the pages were read: its numbers by room are estimates."
    for sentence in report.left_out:
        yield f"Left out: {sentence}."


def _streams(report: Report) -> Section:
    ordered = sorted(report.streams, key=lambda state: not state.fix)
    return Section(
        "Streams",
        "A sequence must be at or above the highest ID in its tables, and every stored position.",
        ("stream", "sequence", "value", "in tables", "stored", "writers", "verdict"),
        [
            [state.stream, state.sequence, _number(state.value), _number(state.in_tables), _number(state.stored),
             _writers(state), state.verdict]
            for state in ordered
        ],
        frozenset({2, 3, 4}),
    )  # fmt: skip


def _writers(state: StreamState) -> str:
    head = max(state.writers.values(), default=0)
    return ", ".join(
        f"{name}" + (f" (-{head - position:,})" if position < head else "")
        for name, position in sorted(state.writers.items(), key=lambda writer: writer[1])
    )


def _remedies(report: Report) -> Section:
    return Section(
        "What frees space",
        "The bytes are estimates. PostgreSQL reuses them; pg_repack or VACUUM FULL gives them to the file system.",
        ("remedy", "frees", "how"),
        [
            [r.subject, f"{'at most ' if r.is_upper_bound else 'about '}{byte_size(r.bytes)}", r.how]
            for r in report.remedies
        ],
        frozenset({1}),
    )


def _rooms(report: Report) -> Section:
    return Section(
        "Largest rooms",
        "A room's share of the tables on the disk, with their indexes.",
        ("room", "name", "members", "local users", "events", "bytes", "events' rows", "JSON", "state", "state rows per event"),
        [
            [room.room_id, room.name, _number(room.members),
             "" if room.has_local_users is None else "yes" if room.has_local_users else "no", f"{room.events:,}",
             byte_size(room.bytes), byte_size(room.event_bytes), byte_size(room.json_bytes), byte_size(room.state_bytes),
             f"{room.state_rows / room.events:.1f}" if room.events else ""]
            for room in report.rooms[:_MOST_ROOMS]
        ],
        frozenset({2, 4, 5, 6, 7, 8, 9}),
    )  # fmt: skip


def _tables(report: Report) -> Section:
    return Section(
        "Largest tables",
        "Bytes are exact, with indexes. Rows are the estimates of PostgreSQL's statistics.",
        ("table", "bytes", "rows", "dead rows"),
        [[t.table, byte_size(t.bytes), f"{t.rows:,}", f"{t.dead_rows:,}"] for t in report.tables[:_MOST_TABLES]],
        frozenset({1, 2, 3}),
    )


def _piled_up(report: Report) -> Section:
    return Section(
        "Forward extremities that pile up",
        "Each event of such a room resolves that many states.",
        ("room", "forward extremities"),
        [[found.room_id, f"{found.extremities:,}"] for found in report.piled_up],
        frozenset({1}),
    )


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
