"""Builds the live page as data (pure): its tables, their groups of rows, and the text of each cell.

The page in the browser (``fragments``) and ``manage.py streams`` are both made from this data, so they cannot disagree.
A cell is text, or a moment whose age is computed where the cell is shown. So a row changes when something happens, and
not merely because time passes. There is no HTML here: names that clients choose are escaped where they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from replsite.dashboard.cells import (
    NOTHING,
    Cell,
    Column,
    Group,
    Page,
    Row,
    head_row,
    lag_cell,
    moment_cell,
    number_cell,
    per_second,
    quoted_key,
    rounded,
    row_of,
    summed,
    text_cell,
)
from replsite.dashboard.storage import ROOMS, STORAGE, room_groups, storage_groups
from replsite.dashboard.summary import summary_tiles
from replsite.snapshot.jobs import JobRow
from replsite.snapshot.readers import ReaderRow, ReaderStreamRow
from replsite.snapshot.snapshot import Snapshot
from replsite.snapshot.streams import ExpectedRow, HolderRow, StreamRow, WriterRow
from replsite.snapshot.workers import WorkersView
from replsite.status.series import Series
from replsite.status.words import Health, Problem, ReaderWord, Severity, Verdict, WriterWord
from streams.core.positions import RETIRED
from streams.holds.look import YOUNG_SECONDS
from streams.runtime.amounts import byte_size, count, counted, done_of, duration
from streams.runtime.text import safe_text

__all__ = [
    "JOBS",
    "READERS",
    "ROOMS",
    "STORAGE",
    "STREAMS",
    "WORKERS",
    "Cell",
    "Column",
    "Group",
    "Page",
    "Row",
    "live_page_data",
]

#: The most readers that are listed: those with a problem (the worst first), those without a problem, and closed readers. So
#: the page stays below a megabyte even if a thousand readers are stuck at once. ``streams --json`` lists all readers.
BAD_READERS_SHOWN = 100
FINE_READERS_SHOWN = 100
CLOSED_READERS_SHOWN = 10
#: Number of problems that are named below the worst one. All of them are in the tables.
PROBLEMS_SHOWN = 4
#: Key of the row about a reader's rights. No stream has this name.
_RIGHTS_KEY = "\nrights"
#: The most open appends that are listed for a stream.
HOLDERS_SHOWN = 5
#: Number of effects that are named below a problem.
EFFECTS_SHOWN = 3

STREAMS = (
    Column("Stream and writer"),
    Column("Status"),
    Column("Position", number=True),
    Column("Behind the head", number=True),
    Column("Facts", number=True),
    Column("Open", number=True),
    Column("Last fact", number=True),
    Column("What it means"),
)
READERS = (
    Column("Reader and stream"),
    Column("Status"),
    Column("Position", number=True),
    Column("Lag", number=True),
    Column("Trend", number=True),
    Column("In and out", number=True),
    Column("Unsent", number=True),
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
    Column("Time left", number=True),
    Column("Began", number=True),
    Column("What it means"),
)
#: Title and sentence for each kind of count. Counts of commands are not on the page, only in the metrics.
_COUNTED = {
    "closed": ("Connections that ended", "Why, since the tables were made."),
    "refused": ("Connections that were refused", "None of these has appeared."),
    "dropped": (
        "Reports that were dropped",
        "More came than may wait or be kept: REPLSITE_WORKER_REPORT_LIMIT, …_USER_ADDRESS_LIMIT.",
    ),
}


def live_page_data(snapshot: Snapshot, *, is_whole: bool = False) -> Page:
    """Returns the page of a snapshot. Rows keep the snapshot's order, worst first.

    With ``is_whole``, no reader is left out.
    """
    storage = snapshot.storage
    return {
        "as_of": snapshot.as_of.isoformat(),
        "storage_at": storage.as_of.isoformat() if storage is not None else "",
        "health": _health(snapshot.health),
        "summary": summary_tiles(snapshot),
        "streams": _stream_groups(snapshot.streams),
        "readers": _reader_groups(snapshot.readers, is_whole=is_whole),
        "jobs": [_job_group(job) for job in snapshot.jobs.jobs],
        "storage": storage_groups(storage),
        "rooms": room_groups(storage.rooms if storage is not None else ()),
        "workers": _worker_groups(snapshot.workers),
    }


def _health(health: Health) -> dict[str, object]:
    """Returns the health of the site: the worst problem as a sentence, a few other problems, and the number of those left out.

    The effects of a problem are listed below it. The key ``said`` has the text for screen readers. This text has no ages
    and lags, because they change all the time.
    """
    effects: dict[str, list[str]] = {}
    for problem in health.problems:
        if problem.cause:
            effects.setdefault(problem.cause, []).append(f"{problem.subject} is {problem.verdict.word}.")
    causes = [problem for problem in health.problems if not problem.cause]
    first, others = causes[:1], causes[1:]
    problems = [_shown_problem(one, effects) for one in others[:PROBLEMS_SHOWN]]
    if more := len(others) - len(problems):
        problems.append({"text": f"And {count(more)} more, in the tables below."})
    worst = f": {first[0].subject} is {first[0].verdict.word}" if first else ""
    return {
        "said": f"{health.word}{worst}"
        + (f", and {count(len(health.problems) - 1)} more" if health.problems[1:] else ""),
        "word": str(health.word),
        "first": {**(_shown_problem(first[0], effects) if first else {}), "text": health.sentence},
        "problems": problems,
    }


def _shown_problem(problem: Problem, effects: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Returns a problem as text, with its command, its actions and a few of its effects."""
    verdict, found = problem.verdict, list(effects.get(problem.subject, ()))
    if more := len(found) - EFFECTS_SHOWN:
        found[EFFECTS_SHOWN:] = [f"And {count(more)} more."] * (more > 0)
    return {
        "text": f"{problem.subject} is {verdict.word}: {verdict.sentence}",
        "command": verdict.command if verdict.command in verdict.sentence else "",
        "actions": verdict.actions,
        "about": problem.about,
        "effects": found,
    }


def _stream_groups(streams: Sequence[StreamRow]) -> list[Group]:
    """Returns a group for each stream that has ever been written. All other streams share one further group, the last.

    A stream that was never written has a group of its own if it is the only one, or if no stream was ever written.
    """
    unused = [stream for stream in streams if _is_unused(stream)]
    if len(unused) in (0, 1, len(streams)):
        return [_stream_group(stream) for stream in streams]
    names = ", ".join(stream.name for stream in unused)
    cells = [text_cell(f"{len(unused)} streams were never written", names), *_blank(5, NOTHING)]
    group: Group = {"key": "\nunused", "head": row_of("", Verdict("", Severity.FINE, ""), cells), "rows": []}
    return [*(_stream_group(stream) for stream in streams if not _is_unused(stream)), group]


def _is_unused(stream: StreamRow) -> bool:
    """Returns true if no process has ever written the stream, and no process is expected to write it."""
    known = stream.writers or stream.expected or stream.retired_before or stream.recorded_from
    return not known and stream.last_fact_at is None and stream.status.severity == Severity.FINE


def _stream_group(stream: StreamRow) -> Group:
    active = [writer for writer in stream.writers if writer.state != RETIRED]
    sequence = [] if stream.sequence_value is None else [f"sequence {count(stream.sequence_value)}"]
    left = [f"{count(stream.retired_before)} retired earlier"] if stream.retired_before else []
    recorded = [f"recorded from {stream.recorded_from}"] if stream.recorded_from else []
    cells = [
        text_cell(stream.name, " · ".join([counted(len(active), "writer"), *left, *sequence, *recorded])),
        text_cell(count(stream.linear_position), "linear position"),
        _waited_for(active),
        _written(stream, active),
        number_cell(len(stream.holders), "", _oldest(stream.holders)),
        moment_cell(stream.last_fact_at),
    ]
    # The stream may have its status from one of its writers. Then the sentence names that writer.
    culprits: tuple[WriterRow | ExpectedRow, ...] = () if stream.blocked else (*stream.writers, *stream.expected)
    culprit = next((writer for writer in culprits if writer.status == stream.status), None)
    sentence = f"{culprit.writer} is {culprit.status.word}." if culprit else stream.status.sentence
    if stream.blocked is not None and stream.status == stream.blocked.status:  # the row of the append says all about it
        sentence = f"Held back by {stream.blocked.name}."
    about = "" if culprit is not None else stream.name
    head = head_row(stream.status, sentence, cells, about=about)
    missed = [one for one in stream.expected if one.status.severity >= Severity.WARNING]
    rows = [_expected_row(one) for one in missed]
    rows += [_holder_row(one, stream.name) for one in _shown_holders(stream)]
    rows += [_writer_row(writer, is_one_of_several=len(active) > 1) for writer in stream.writers]
    return {"key": stream.name, "head": head, "rows": rows}


def _expected_row(one: ExpectedRow) -> Row:
    """Returns the row of an expected writer that is missing or writes too few facts."""
    active = f"{count(one.active)} active" if one.active else "expected"
    written = text_cell(NOTHING) if one.facts_last_hour is None else text_cell(count(one.facts_last_hour), "last hour")
    return row_of(
        f"{one.writer} (expected)",
        one.status,
        [text_cell(one.writer, active), *_blank(2, NOTHING), written, *_blank(2, NOTHING)],
    )


def _shown_holders(stream: StreamRow) -> list[HolderRow]:
    """Returns the first open appends that are not young. Young ones come and go all the time."""
    return [one for one in stream.holders if (one.seconds or 0.0) > YOUNG_SECONDS][:HOLDERS_SHOWN]


def _oldest(holders: Sequence[HolderRow]) -> datetime | None:
    old = (one.since for one in holders if one.since is not None and (one.seconds or 0.0) > YOUNG_SECONDS)
    return min(old, default=None)


def _holder_row(one: HolderRow, stream: str) -> Row:
    """Returns the row of an open append: its session, where it holds the stream back, and since when."""
    about = " · ".join(part for part in (one.application, one.role, one.client, one.state) if part)
    opened = text_cell("", "", one.since)
    cells = [
        text_cell(one.name, about),
        text_cell(count(one.bound), "holds it back here"),
        *_blank(2, NOTHING),
        opened,
        text_cell(NOTHING),
    ]
    return row_of(f"\nheld {one.name}", one.status, cells, about=stream)


def _waited_for(active: Sequence[WriterRow]) -> Cell:
    """Returns a cell about the writer that is furthest behind: the number and age of the facts above its position.

    Linear readers cannot read these facts before that writer's position reaches them.
    """
    worst = max(active, key=lambda writer: writer.behind_facts, default=None)
    return (
        text_cell(NOTHING) if worst is None else lag_cell(worst.behind_facts, worst.behind_seconds, worst.behind_exact)
    )


def _written(stream: StreamRow, active: Sequence[WriterRow]) -> Cell:
    """Returns a cell with the facts per second of all active writers now, and the chart of the last minutes."""
    return _speed(sum(writer.facts_per_second or 0.0 for writer in active), stream.recent)


def _speed(speed: float, recent: Series) -> Cell:
    cell = text_cell(per_second(speed) if speed else NOTHING)
    if recent:
        cell["series"] = rounded(recent)
    return cell


def _writer_row(writer: WriterRow, *, is_one_of_several: bool) -> Row:
    behind = lag_cell(writer.behind_facts, writer.behind_seconds, writer.behind_exact)
    cells = [
        text_cell(writer.writer),
        text_cell(count(writer.position)),
        text_cell(NOTHING) if writer.state == RETIRED else behind,
        _speed(writer.facts_per_second or 0.0, writer.recent if is_one_of_several else ()),
        text_cell("open", "", writer.held_since) if writer.held_by else text_cell(NOTHING),
        moment_cell(writer.last_write_at),
    ]
    admin_id = str(writer.row_id) if writer.row_id is not None else ""
    status = writer.status
    if status.word == WriterWord.BLOCKED:  # there may be many of them, and one row of the append that blocks them
        status = Verdict(status.word, status.severity, "The open append above may be its own.")
    return row_of(writer.writer, status, cells, admin_id)


def _reader_groups(readers: Sequence[ReaderRow], *, is_whole: bool = False) -> list[Group]:
    """Returns a group for each reader.

    There is one limit for readers with a problem, one for fine readers and one for closed readers. If a limit leaves readers
    out, a further group gives their number. With ``is_whole``, there are no limits.
    """
    if is_whole:
        return [_reader_group(reader) for reader in readers]
    closed = sorted((r for r in readers if r.closed_at is not None), key=_closed_at, reverse=True)
    bad = [r for r in readers if r.closed_at is None and r.status.severity >= Severity.WARNING]
    fine = [r for r in readers if r.closed_at is None and r.status.severity < Severity.WARNING]
    left_out = {
        "bad": bad[BAD_READERS_SHOWN:],
        "fine": fine[FINE_READERS_SHOWN:],
        "closed": closed[CLOSED_READERS_SHOWN:],
    }
    hidden = {reader.key for found in left_out.values() for reader in found}
    groups = [_reader_group(reader) for reader in readers if reader.key not in hidden]
    return groups + [_more_readers(name, found) for name, found in left_out.items() if found]


def _closed_at(reader: ReaderRow) -> datetime:
    return reader.closed_at or reader.heartbeat_at


_LEFT_OUT = {"bad": "that need a look", "fine": "that are fine", "closed": "that closed a short while ago"}


def _more_readers(name: str, left_out: Sequence[ReaderRow]) -> Group:
    """Returns the group that gives the number of readers that were left out.

    ``name`` tells which readers these are: bad (with a problem), fine or closed. The group's key begins with a newline, as
    no reader's key does.
    """
    cells = [text_cell(f"and {count(len(left_out))} more {_LEFT_OUT[name]}"), *_blank(len(READERS) - 3)]
    severity = left_out[0].status.severity if name == "bad" else Severity.FINE
    status = Verdict(
        "gone" if name == "closed" else "", severity, "manage.py streams --json has all." * (name == "bad")
    )
    return {"key": f"\nmore {name}", "head": row_of("", status, cells), "rows": []}


def _blank(number: int, text: str = "") -> list[Cell]:
    return [text_cell(text) for _ in range(number)]


def _reader_group(reader: ReaderRow) -> Group:
    if reader.closed_at is not None:  # its streams do not matter any more; the row shows why it closed
        cells = [_who(reader), *_blank(3, NOTHING), _sent(reader), text_cell(NOTHING), moment_cell(reader.connected_at)]
        head = row_of("", reader.status, cells, quoted_key(reader.key), reader.about)
        return {"key": reader.key, "head": head, "rows": _rights_rows(reader)}
    if reader.status.word == ReaderWord.NEVER_SEEN:
        head = row_of("", reader.status, [_who(reader), *_blank(len(READERS) - 3, NOTHING)])
        return {"key": reader.key, "head": head, "rows": []}
    only = reader.streams[0] if len(reader.streams) == 1 else None
    cells = [
        _who(reader),
        _position(only, reader.kind) if only else text_cell(NOTHING),
        _lag(reader.streams, lag_cell(reader.lag_facts, reader.lag_seconds, all(s.lag_exact for s in reader.streams))),
        _trend(reader.streams),
        _sent(reader),
        _unsent(reader),
        moment_cell(reader.connected_at) if reader.runs else text_cell(NOTHING),
    ]
    about = f"{reader.streams[0].stream}: " if reader.streams else ""
    page = quoted_key(reader.key) if reader.has_row else ""
    head = head_row(reader.status, about + reader.status.sentence, cells, page, reader.about)
    rows = [_reader_row(view, reader) for view in reader.streams]
    return {"key": reader.key, "head": head, "rows": [*rows, *_rights_rows(reader)]}


def _rights_rows(reader: ReaderRow) -> list[Row]:
    """Returns a list with a row about the rights of the connection's TLS certificate, empty if no rule limits the rights."""
    rights = reader.rights
    if rights is None:
        return []
    allowed = (
        _allowed("calls itself", rights.names, "nothing"),
        _allowed("follows", rights.streams, "no stream"),
        _allowed("reports", rights.reports, "nothing"),
    )
    status = Verdict("", Severity.FINE, "")
    if rights.refused:
        why = f"{counted(rights.refused, 'command')} refused, the last one because {rights.refusal}."
        status = Verdict("", Severity.NOTE, why)
    name = text_cell(f"Rights of certificate {safe_text(rights.certificate)}", " · ".join(allowed))
    return [row_of(_RIGHTS_KEY, status, [name, *_blank(6)])]


def _allowed(does: str, patterns: Sequence[str], nothing: str) -> str:
    said = "anything" if "*" in patterns else ", ".join(patterns) or nothing
    return f"{does} {safe_text(said)}"


def _who(reader: ReaderRow) -> Cell:
    kind = "named in REPLSITE_READERS" if reader.status.word == ReaderWord.NEVER_SEEN else reader.kind
    process = f"process {reader.process_id}" if reader.process_id else ""
    follows = counted(len(reader.streams), "stream") if reader.streams else ""
    refused = f"{counted(reader.rights.refused, 'command')} refused" if reader.rights and reader.rights.refused else ""
    about = (kind, reader.address, process, follows, refused)
    return text_cell(reader.name, " · ".join(part for part in about if part))


def _position(view: ReaderStreamRow, kind: str) -> Cell:
    """Returns a cell with the reader's position. The cell's second line says "sent" for a connection, else "handled".

    If the stream has several writers, the cell has the lowest position, and its second line says that this is the lowest.
    """
    lowest = "lowest of " + counted(len(view.positions), "writer") if len(view.positions) > 1 else ""
    said = "sent" if kind == "connection" else "handled"
    return text_cell(count(view.position), " · ".join(part for part in (said, lowest) if part))


def _lag(streams: Sequence[ReaderStreamRow], cell: Cell) -> Cell:
    """Adds the number of dead letters, if there are any, to the given cell with the lag. Returns the cell."""
    if parked := sum(view.parked_facts for view in streams):
        more = "" if all(view.parked_exact for view in streams) else "more than "
        cell["sub"] = " · ".join(part for part in (cell.get("sub", ""), f"{more}{count(parked)} parked") if part)
    return cell


def _trend(streams: Sequence[ReaderStreamRow]) -> Cell:
    """Returns a cell with the change of the lag per second, the time until there is no lag at that rate, and a chart.

    The chart covers the last five minutes.
    """
    lagging = [view for view in streams if view.lag_facts]
    changes = [view.lag_change_per_second for view in lagging if view.lag_change_per_second is not None]
    ends = [view.seconds_to_current for view in lagging]
    soon = [end for end in ends if end is not None]
    # The lag ends when the slowest stream is current. If the end is unknown for one of them, none is shown.
    until = f"current in {duration(max(soon))}" if soon and len(soon) == len(ends) else ""
    cell = text_cell(_movement(sum(changes)) if changes else NOTHING, until)
    if any(view.recent for view in streams):
        cell["series"] = rounded(summed([view.recent for view in streams if view.recent]))
    return cell


def _movement(change: float) -> str:
    if abs(change) < 0.05:
        return "steady"
    return f"falls {per_second(-change)}" if change < 0 else f"grows {per_second(change)}"


def _sent(reader: ReaderRow) -> Cell:
    """Returns a cell with the bytes per second out and in, and the number of all bytes sent.

    While the rates are unknown, the cell has the numbers of all bytes out and in.
    """
    if not reader.bytes_out and not reader.bytes_in:
        return text_cell(NOTHING)
    if reader.bytes_out_per_second is None or reader.bytes_in_per_second is None:
        return text_cell(f"{byte_size(reader.bytes_out)} out", f"{byte_size(reader.bytes_in)} in")
    out, into = round(reader.bytes_out_per_second), round(reader.bytes_in_per_second)
    return text_cell(f"{byte_size(out)}/s out", f"{byte_size(into)}/s in · {byte_size(reader.bytes_out)} sent")


def _unsent(reader: ReaderRow) -> Cell:
    """Returns a cell with the bytes in the server's buffer, and the time until the buffer is full at the present rate."""
    left = reader.seconds_to_overflow
    return text_cell(
        byte_size(reader.buffer_bytes) if reader.buffer_bytes else NOTHING,
        f"full in {duration(left)}" if left is not None else "",
    )


def _reader_row(view: ReaderStreamRow, reader: ReaderRow) -> Row:
    """Returns the row of a reader on a stream.

    The row has the actions of its status, unless the first row of the reader's group has the same actions.
    """
    cells = [
        text_cell(view.stream),
        _position(view, reader.kind),
        _lag([view], lag_cell(view.lag_facts, view.lag_seconds, view.lag_exact)),
        _trend([view]),
        *_blank(3),
    ]
    about = "" if view.status.actions == reader.status.actions else reader.about
    return row_of(view.stream, view.status, cells, about=about)


def _worker_groups(workers: WorkersView) -> list[Group]:
    syncing = [
        _report(
            f"{one.name} {one.worker}",
            [text_cell(one.name, one.address), count(one.users), moment_cell(one.last_news_at)],
        )
        for one in workers.syncing
    ]
    acknowledged = [
        _report(one.instance, [text_cell(one.instance), count(one.token), moment_cell(one.acknowledged_at)])
        for one in workers.acknowledged
    ]
    about = "" if workers.addresses_exact else "more than "
    groups = []
    if syncing:
        groups.append(_reports("syncing", "Users that sync", count(workers.users_syncing), syncing))
    if acknowledged:
        groups.append(_reports("federation", "Federation acknowledged up to", "", acknowledged))
    if workers.addresses:
        groups.append(_reports("addresses", "Addresses of users", f"{about}{count(workers.addresses)}", []))
    for kind, (title, sentence) in _COUNTED.items():
        totals = workers.counted(kind)
        rows = [_report(name, [text_cell(name), count(total), text_cell("")]) for name, total in totals.items()]
        if rows:
            groups.append(_reports(kind, title, count(sum(totals.values())), rows, sentence))
    return groups


def _job_group(job: JobRow) -> Group:
    about = " · ".join(part for part in (f"job {job.id}", job.asked_by and f"asked for by {job.asked_by}") if part)
    left = text_cell(NOTHING) if job.seconds_left is None else text_cell(duration(job.seconds_left), "in this stage")
    began = moment_cell(job.began_at) if job.began_at is not None else moment_cell(job.queued_at, "queued")
    cells = [text_cell(job.kind, about), _progress(job), left, began]
    return {"key": str(job.id), "head": row_of("", job.status, cells, str(job.id), str(job.id)), "rows": []}


def _progress(job: JobRow) -> Cell:
    if not job.stage and not job.done:
        return text_cell(NOTHING)
    what = [job.stage, f"{count(round(job.rate))}/s" if job.rate else ""]
    cell = text_cell(done_of(job.done, job.total, job.unit), " · ".join(part for part in what if part))
    if job.total and job.ended_at is None:
        cell["share"] = round(min(job.done / job.total, 1.0), 3)
    return cell


def _reports(key: str, title: str, number: str, rows: list[Row], sentence: str = "") -> Group:
    head = _report("", [text_cell(title), number, text_cell("")], sentence)
    return {"key": key, "head": head, "rows": rows}


def _report(key: str, cells: Sequence[Cell | str], sentence: str = "") -> Row:
    """Returns a row without a status word, because reports of workers are neither good nor bad by themselves."""
    said = [text_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    return row_of(key, Verdict("", Severity.FINE, sentence), said)
