"""The table of streams: a row for each stream, and below it its expected writers, its open appends, and its writers (pure).

Here are the classes of these rows, the query that fills those of writers, and the columns that show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from replsite.live_rows.cells import (
    HIDDEN,
    NO_STATUS,
    NOTHING,
    Cell,
    Column,
    Group,
    Table,
    joined,
    lag_cell,
    moment_cell,
    number_cell,
    per_second,
    rounded,
    text_cell,
)
from replsite.status.series import Series
from replsite.status.words import Severity, Verdict, WriterWord
from streams.core.positions import RETIRED
from streams.holds.installed_sql import ANY_WRITER, class_of
from streams.holds.look import YOUNG_SECONDS
from streams.runtime.amounts import count, counted
from streams.runtime.gc_pause import collector_paused

#: The most open appends that are listed for a stream.
HOLDERS_SHOWN = 5

_WRITERS = """
SELECT stream, instance_name, abs(position), state, abs(last_write_position), last_fact_at, last_advance_at, facts_written, id
FROM streams_streamposition p
WHERE stream = ANY (%(declared)s) OR EXISTS (SELECT FROM streams_held h WHERE h.stream = p.stream)
ORDER BY stream, state = 'retired', instance_name
"""


@dataclass(slots=True)
class WriterRow:
    """A writer on a stream.

    ``behind_facts`` is the number of facts above the writer's position, and ``behind_seconds`` the age of the oldest of
    these facts. Linear readers wait for them. If ``behind_exact`` is false, the number is an estimate. ``held_by`` is the
    oldest open append that may be this writer's, in words. It is empty if there is none.
    """

    stream: str
    writer: str
    position: int
    state: str
    last_write_position: int | None
    last_write_at: datetime | None
    last_advance_at: datetime
    facts_written: int
    row_id: int | None = None
    """Key of its row in ``streams_streamposition``. None: a recorded writer has no row there."""
    behind_facts: int = 0
    behind_seconds: float = 0.0
    behind_exact: bool = True
    facts_per_second: float | None = None
    """Over the last half minute. None: not watched long enough."""
    recent: Series = ()
    """Facts per second in the last five minutes, or since this process began to watch the writer. Empty: no facts at all."""
    held_since: datetime | None = None
    held_seconds: float | None = None
    held_by: str = ""
    is_alone: bool = field(default=True, metadata=HIDDEN)
    """False: its stream has several active writers, so its figures are not those of the stream."""
    status: Verdict = NO_STATUS


@dataclass(slots=True)
class HolderRow:
    """An open append that holds a stream back at ``bound``: a session with its process ``pid``, or a prepared transaction.

    Texts are empty if they are not known. Of ``statement``, texts in quotes are left out, because they may be private.
    """

    stream: str = field(metadata=HIDDEN)
    words: str = field(metadata=HIDDEN)
    """Its session or prepared transaction, with all that is known of it."""
    writer_class: int = field(metadata=HIDDEN)
    bound: int
    pid: int | None
    prepared: str
    since: datetime | None
    seconds: float | None
    """Since its transaction began. If the database hides that: since this process saw it first."""
    state: str
    role: str
    application: str
    client: str
    statement: str
    waits_for: str = field(default="", metadata=HIDDEN)
    """The session for whose lock it waits, in words. Empty: it waits for no lock."""
    keeps_rows: bool = field(default=False, metadata=HIDDEN)
    """True if it keeps rows of stored positions, and has appended nothing."""
    status: Verdict = NO_STATUS

    @property
    def name(self) -> str:
        """Its session or prepared transaction, in a few words."""
        if self.prepared:
            return f"prepared transaction {self.prepared}"
        return "a session that is ending" if self.pid is None else f"session {self.pid}"

    def may_be_of(self, writer: str) -> bool:
        return self.writer_class in (ANY_WRITER, class_of(writer))


@dataclass(slots=True)
class ExpectedRow:
    """A name or pattern of REPLSITE_EXPECTED_WRITERS on one stream.

    ``active`` is the number of matching writers that are not retired. ``facts_last_hour`` is None if no
    minimum is set, or if this process has watched these writers for less than an hour.
    """

    stream: str
    writer: str
    active: int = 0
    facts_last_hour: int | None = None
    least_per_hour: float | None = None
    status: Verdict = NO_STATUS
    last_write_at: datetime | None = field(default=None, metadata=HIDDEN)


@dataclass(slots=True)
class StreamRow:
    """A stream with its positions and its writers, worst first."""

    name: str
    head: int
    linear_position: int
    sequence_value: int | None
    last_fact_at: datetime | None
    status: Verdict
    writers: tuple[WriterRow, ...]
    retired_before: int = 0
    """Number of retired writers that are not listed: they left long ago, or there are too many."""
    recorded_from: str = ""
    """The foreign server that the stream is recorded from. Empty for our own streams."""
    recent: Series = ()
    """Facts per second in the last five minutes, by steps (``replsite.status.series``), oldest first. Empty: no facts at all."""
    expected: tuple[ExpectedRow, ...] = ()
    """The required writers, worst first."""
    sequence_status: Verdict | None = None
    """What is wrong with its sequence. None: nothing."""
    holders: tuple[HolderRow, ...] = ()
    """Who holds the stream back now, the lowest bound first."""

    def __post_init__(self) -> None:
        for writer in self.writers:
            writer.is_alone = len(self.active) <= 1

    @property
    def active(self) -> list[WriterRow]:
        return [writer for writer in self.writers if writer.state != RETIRED]

    @property
    def blocked(self) -> HolderRow | None:
        return next((h for h in self.holders if h.status.severity >= Severity.WARNING), None)


def read_writers(cursor: Any, declared: Iterable[str]) -> list[WriterRow]:
    """Returns all writers of all streams, sorted by stream. In each stream, retired writers come last.

    A stream that is neither ``declared`` here nor has tables that hold it is no more: its positions are only remembered.
    """
    cursor.execute(_WRITERS, {"declared": list(declared)})
    with collector_paused():
        return [WriterRow(*row) for row in cursor.fetchall()]


def _about(stream: StreamRow) -> str:
    return joined(
        counted(len(stream.active), "writer"),
        f"{count(stream.retired_before)} retired earlier" if stream.retired_before else "",
        "" if stream.sequence_value is None else f"sequence {count(stream.sequence_value)}",
        f"recorded from {stream.recorded_from}" if stream.recorded_from else "",
    )


def _behind(writer: WriterRow | None) -> Cell | str:
    # Linear readers wait for these facts.
    if writer is None or writer.state == RETIRED:
        return NOTHING
    return lag_cell(writer.behind_facts, writer.behind_seconds, writer.behind_exact)


def _speed(speed: float, recent: Series) -> Cell:
    cell = text_cell(per_second(speed) if speed else NOTHING)
    if recent:
        cell["series"] = rounded(recent)
    return cell


def _old(stream: StreamRow) -> list[HolderRow]:
    # Young ones come and go all the time.
    return [h for h in stream.holders if (h.seconds or 0.0) > YOUNG_SECONDS]


STREAMS = Table(
    "Streams and writers",
    "How far every writer of every stream is, worst first.",
    "No stream is declared.",
    (
        Column("Stream and writer", {
            StreamRow: lambda stream: text_cell(stream.name, _about(stream)),
            ExpectedRow: lambda e: text_cell(e.writer, f"{count(e.active)} active" if e.active else "expected"),
            HolderRow: lambda held: text_cell(held.name, joined(held.application, held.role, held.client, held.state)),
            WriterRow: lambda writer: writer.writer,
        }, number=False),
        Column("Position", {
            StreamRow: lambda stream: text_cell(count(stream.linear_position), "linear position"),
            HolderRow: lambda held: text_cell(count(held.bound), "holds it back here"),
            WriterRow: lambda writer: count(writer.position),
        }),
        Column("Behind the head", {
            StreamRow: lambda stream: _behind(max(stream.active, key=lambda w: w.behind_facts, default=None)),
            WriterRow: _behind,
        }),
        Column("Facts", {
            StreamRow: lambda stream: _speed(sum(w.facts_per_second or 0.0 for w in stream.active), stream.recent),
            ExpectedRow: lambda e: (
                NOTHING if e.facts_last_hour is None else text_cell(count(e.facts_last_hour), "last hour")
            ),
            WriterRow: lambda writer: _speed(writer.facts_per_second or 0.0, () if writer.is_alone else writer.recent),
        }),
        Column("Open", {
            StreamRow: lambda stream: number_cell(
                len(stream.holders), "", min((h.since for h in _old(stream) if h.since), default=None)
            ),
            HolderRow: lambda held: text_cell("", "", held.since),
            WriterRow: lambda writer: text_cell("open", "", writer.held_since) if writer.held_by else NOTHING,
        }),
        Column("Last fact", {
            StreamRow: lambda stream: moment_cell(stream.last_fact_at),
            WriterRow: lambda writer: moment_cell(writer.last_write_at),
        }),
    ),
    has_menu=True,
)  # fmt: skip


def stream_groups(streams: Sequence[StreamRow]) -> list[Group]:
    """Returns a group for each stream that has ever been written. All other streams share one further group, the last.

    A stream that was never written has a group of its own if it is the only one, or if no stream was ever written.
    """
    unused = [stream for stream in streams if _is_unused(stream)]
    if len(unused) in (0, 1, len(streams)):
        return [_stream_group(stream) for stream in streams]
    names = ", ".join(stream.name for stream in unused)
    head = STREAMS.remark("", text_cell(f"{len(unused)} streams were never written", names), blank=NOTHING)
    group: Group = {"key": "\nunused", "head": head, "rows": []}
    return [*(_stream_group(stream) for stream in streams if not _is_unused(stream)), group]


def _is_unused(stream: StreamRow) -> bool:
    known = stream.writers or stream.expected or stream.retired_before or stream.recorded_from
    return not known and stream.last_fact_at is None and stream.status.severity == Severity.FINE


def _stream_group(stream: StreamRow) -> Group:
    # The stream may have its status from one of its writers. Then the sentence names that writer.
    culprits: tuple[WriterRow | ExpectedRow, ...] = () if stream.blocked else (*stream.writers, *stream.expected)
    culprit = next((writer for writer in culprits if writer.status == stream.status), None)
    sentence = f"{culprit.writer} is {culprit.status.word}." if culprit else stream.status.sentence
    if stream.blocked is not None and stream.status == stream.blocked.status:  # the row of the append says all about it
        sentence = f"Held back by {stream.blocked.name}."
    head = STREAMS.head(stream, sentence, about="" if culprit is not None else stream.name)
    missed = [e for e in stream.expected if e.status.severity >= Severity.WARNING]
    rows = [STREAMS.row(e, f"{e.writer} (expected)") for e in missed]
    rows += [STREAMS.row(h, f"\nheld {h.name}", about=stream.name) for h in _old(stream)[:HOLDERS_SHOWN]]
    for writer in stream.writers:
        status = writer.status
        if status.word == WriterWord.BLOCKED:  # there may be many of them, and one row of the append that blocks them
            status = Verdict(status.word, status.severity, "The open append above may be its own.")
        rows.append(STREAMS.row(writer, writer.writer, status, "" if writer.row_id is None else str(writer.row_id)))
    return {"key": stream.name, "head": head, "rows": rows}
