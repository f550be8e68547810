"""The live page as data: tables of groups of rows of cells, said in words (pure).

Both the first rendering on the server and the changes that travel over the WebSocket come from here, so they cannot disagree.
A cell is text, or a moment whose age is counted where it is shown; so a row changes only when something happened, not
because a second went by. Nothing here is HTML: names that readers choose stay text all the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NotRequired, TypedDict

from replsite.snapshot_views import (
    JobStatusView,
    ReaderStreamView,
    ReaderView,
    Snapshot,
    StreamView,
    WorkersView,
    WriterView,
)
from replsite.status import Severity, Verdict
from replsite.wording import byte_size, count, counted, duration
from streams.positions import RETIRED

__all__ = ["JOBS", "READERS", "STREAMS", "WORKERS", "Cell", "Column", "Group", "Page", "Row", "live_page_data"]

_NOTHING = "-"
#: So many readers that are fine, and that ended, are listed at most; ``streams --json`` has all of them.
FINE_READERS_SHOWN = 100
CLOSED_READERS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are set to the right."""

    title: str
    number: bool = False


STREAMS = (
    Column("Stream and writer"),
    Column("Status"),
    Column("Position", number=True),
    Column("Behind the head", number=True),
    Column("Pending", number=True),
    Column("Last fact", number=True),
    Column("What it means"),
)
READERS = (
    Column("Reader and stream"),
    Column("Status"),
    Column("Position", number=True),
    Column("Lag", number=True),
    Column("Sent", number=True),
    Column("Connected", number=True),
    Column("What it means"),
)


WORKERS = (
    Column("Report"),
    Column("Status"),
    Column("Number", number=True),
    Column("Last news", number=True),
    Column("What it means"),
)
JOBS = (
    Column("Job"),
    Column("Status"),
    Column("Progress", number=True),
    Column("Began", number=True),
    Column("What it means"),
)
#: What is told of each kind of count; commands are for the metrics.
_COUNTED = {
    "closed": ("Connections that ended", "Why, since the tables were made."),
    "refused": ("Connections that were refused", "Nobody of these came in."),
    "dropped": ("Reports that were dropped", "More came than may wait; see REPLSITE_WORKER_REPORT_LIMIT."),
}


class Cell(TypedDict):
    """``text``, smaller ``sub`` text below it, and ``at``: a moment whose age replaces the text."""

    text: str
    sub: NotRequired[str]
    at: NotRequired[str]


class Row(TypedDict):
    """One line: its key within the group, how bad it is, its status word (in the second column), and its cells."""

    key: str
    severity: str
    cells: list[Cell]


class Group(TypedDict):
    """A stream with its writers, or a reader with its streams."""

    key: str
    head: Row
    rows: list[Row]


class Page(TypedDict):
    """Everything that the page shows of one snapshot."""

    as_of: str
    health: dict[str, Any]
    streams: list[Group]
    readers: list[Group]
    workers: list[Group]
    jobs: list[Group]


def live_page_data(snapshot: Snapshot) -> Page:
    """The page of a snapshot; worst first, as the snapshot is."""
    health = snapshot.health
    return {
        "as_of": snapshot.as_of.isoformat(),
        "health": {
            "word": str(health.word),
            "sentence": health.sentence,
            "problems": [f"{p.subject} is {p.verdict.word}: {p.verdict.sentence}" for p in health.problems[1:]],
        },
        "streams": [_stream_group(stream) for stream in snapshot.streams],
        "readers": _reader_groups(snapshot.readers),
        "workers": _worker_groups(snapshot.workers),
        "jobs": [_job_group(job) for job in snapshot.jobs.jobs],
    }


def _row(key: str, status: Verdict, cells: Iterable[Cell]) -> Row:
    name, *rest = cells
    return {
        "key": key,
        "severity": status.severity.name.lower(),
        "cells": [name, {"text": str(status.word)}, *rest, {"text": status.sentence}],
    }


def _head(status: Verdict, sentence: str, cells: Iterable[Cell]) -> Row:
    """The first line of a group; it says something only when there is something to do."""
    return _row("", Verdict(status.word, status.severity, "" if status.severity == Severity.FINE else sentence), cells)


def _text(text: str, sub: str = "") -> Cell:
    return {"text": text, "sub": sub} if sub else {"text": text}


def _moment(at: datetime | None, sub: str = "") -> Cell:
    cell = _text(_NOTHING, sub)
    if at is not None:
        cell["at"] = at.isoformat()
    return cell


def _lag(facts: int, seconds: float, exact: bool) -> Cell:
    if not facts:
        return _text("0 facts")
    return _text(f"{'' if exact else 'about '}{counted(facts, 'fact')}", duration(seconds))


def _stream_group(stream: StreamView) -> Group:
    active = [writer for writer in stream.writers if writer.state != RETIRED]
    sequence = [] if stream.sequence_value is None else [f"sequence {count(stream.sequence_value)}"]
    left = [f"{count(stream.retired_before)} retired earlier"] if stream.retired_before else []
    cells = [
        _text(stream.name, " · ".join([counted(len(active), "writer"), *left, *sequence])),
        _text(count(stream.linear_position), "linear position"),
        _waited_for(active),
        _number(sum(writer.pending_facts for writer in stream.writers)),
        _moment(stream.last_fact_at),
    ]
    culprit = next((writer for writer in stream.writers if writer.status == stream.status), None)
    sentence = f"{culprit.writer} is {culprit.status.word}." if culprit else stream.status.sentence
    head = _head(stream.status, sentence, cells)
    return {"key": stream.name, "head": head, "rows": [_writer_row(writer) for writer in stream.writers]}


def _waited_for(active: Sequence[WriterView]) -> Cell:
    """What a linear reader waits for: the lag of the writer that is furthest behind."""
    worst = max(active, key=lambda writer: writer.behind_facts, default=None)
    return _text(_NOTHING) if worst is None else _lag(worst.behind_facts, worst.behind_seconds, worst.behind_exact)


def _number(number: int) -> Cell:
    return _text(count(number) if number else _NOTHING)


def _writer_row(writer: WriterView) -> Row:
    where = f"{writer.host}, process {writer.process_id}" if writer.process_id else writer.host
    pending = _text(_NOTHING)
    if writer.pending_facts:
        number = writer.oldest_pending_transaction
        pending = _text(count(writer.pending_facts), "" if number is None else f"transaction {number}")
    cells = [
        _text(writer.writer, where),
        _text(count(writer.position)),
        _text(_NOTHING)
        if writer.state == RETIRED
        else _lag(writer.behind_facts, writer.behind_seconds, writer.behind_exact),
        pending,
        _moment(writer.last_write_at),
    ]
    return _row(writer.writer, writer.status, cells)


def _reader_groups(readers: Sequence[ReaderView]) -> list[Group]:
    """All that need a look; of those that are fine, and of those that ended, so many; then how many more there are."""
    closed = sorted((r for r in readers if r.closed_at is not None), key=_closed_at, reverse=True)
    fine = [r for r in readers if r.closed_at is None and r.status.severity < Severity.WARNING]
    hidden = {r.key for r in (*fine[FINE_READERS_SHOWN:], *closed[CLOSED_READERS_SHOWN:])}
    groups = [_reader_group(reader) for reader in readers if reader.key not in hidden]
    for name, found, shown in (("fine", fine, FINE_READERS_SHOWN), ("closed", closed, CLOSED_READERS_SHOWN)):
        if more := len(found) - shown if len(found) > shown else 0:
            groups.append(_more_readers(name, more))
    return groups


def _closed_at(reader: ReaderView) -> datetime:
    return reader.closed_at or reader.heartbeat_at


def _more_readers(name: str, more: int) -> Group:
    """The line that stands for those that are not listed. Its key is none of a reader's."""
    what = "that are fine" if name == "fine" else "that closed a short while ago"
    cells = [_text(f"and {count(more)} more {what}"), *(_text("") for _ in range(4))]
    status = Verdict("" if name == "fine" else "gone", Severity.FINE, "")
    return {"key": f"\nmore {name}", "head": _row("", status, cells), "rows": []}


def _reader_group(reader: ReaderView) -> Group:
    if reader.closed_at is not None:  # its lines are history: nothing to do, but the reason is worth a word
        cells = [_who(reader), _text(_NOTHING), _text(_NOTHING), _sent(reader), _moment(reader.connected_at)]
        return {"key": reader.key, "head": _row("", reader.status, cells), "rows": []}
    exact = all(stream.lag_exact for stream in reader.streams)
    cells = [
        _who(reader),
        _text(count(reader.streams[0].position) if len(reader.streams) == 1 else _NOTHING),
        _lag(reader.lag_facts, reader.lag_seconds, exact),
        _sent(reader),
        _moment(reader.connected_at),
    ]
    about = f"{reader.streams[0].stream}: " if reader.streams else ""
    head = _head(reader.status, about + reader.status.sentence, cells)
    return {"key": reader.key, "head": head, "rows": [_reader_row(view) for view in reader.streams]}


def _who(reader: ReaderView) -> Cell:
    follows = counted(len(reader.streams), "stream") if reader.streams else ""
    return _text(reader.name, " · ".join(part for part in (reader.kind, reader.address, follows) if part))


def _sent(reader: ReaderView) -> Cell:
    if not reader.bytes_out:
        return _text(_NOTHING)
    waiting = f", {byte_size(reader.buffer_bytes)} waiting" if reader.buffer_bytes else ""
    return _text(counted(reader.lines_out, "line"), byte_size(reader.bytes_out) + waiting)


def _reader_row(view: ReaderStreamView) -> Row:
    cells = [
        _text(view.stream),
        _text(
            count(view.position),
            "lowest of " + counted(len(view.positions), "writer") if len(view.positions) > 1 else "",
        ),
        _lag(view.lag_facts, view.lag_seconds, view.lag_exact),
        _text(""),
        _text(""),
    ]
    return _row(view.stream, view.status, cells)


def _worker_groups(workers: WorkersView) -> list[Group]:
    syncing = [
        _report(f"{one.name} {one.worker}", [_text(one.name, one.address), count(one.users), _moment(one.last_news_at)])
        for one in workers.syncing
    ]
    acknowledged = [
        _report(one.instance, [_text(one.instance), count(one.token), _moment(one.acknowledged_at)])
        for one in workers.acknowledged
    ]
    about = "" if workers.addresses_exact else "more than "
    groups = [
        _reports("syncing", "Users that sync", count(workers.users_syncing), syncing),
        _reports("federation", "Federation acknowledged up to", "", acknowledged),
        _reports("addresses", "Addresses of users", f"{about}{count(workers.addresses)}", []),
    ]
    for kind, (title, sentence) in _COUNTED.items():
        totals = workers.counted(kind)
        rows = [_report(name, [_text(name), count(total), _text("")]) for name, total in totals.items()]
        groups.append(_reports(kind, title, count(sum(totals.values())), rows, sentence))
    return [group for group in groups if group["rows"] or group["key"] in ("syncing", "addresses")]


def _job_group(job: JobStatusView) -> Group:
    about = " · ".join(part for part in (f"job {job.id}", job.asked_by and f"asked for by {job.asked_by}") if part)
    of = f" of {count(job.total)}" if job.total is not None else ""
    what = [job.stage, f"{count(round(job.rate))}/s" if job.rate else ""]
    progress = _text(f"{count(job.done)}{of} {job.unit}".strip(), " · ".join(part for part in what if part))
    began = _moment(job.began_at) if job.began_at is not None else _moment(job.queued_at, "queued")
    cells = [_text(job.kind, about), progress if job.stage or job.done else _text(_NOTHING), began]
    return {"key": str(job.id), "head": _row("", job.status, cells), "rows": []}


def _reports(key: str, title: str, number: str, rows: list[Row], sentence: str = "") -> Group:
    head = _report("", [_text(title), number, _text("")], sentence)
    return {"key": key, "head": head, "rows": rows}


def _report(key: str, cells: Sequence[Cell | str], sentence: str = "") -> Row:
    """Nothing that workers report is good or bad by itself: there is no status word."""
    said = [_text(cell) if isinstance(cell, str) else cell for cell in cells]
    return _row(key, Verdict("", Severity.FINE, sentence), said)
