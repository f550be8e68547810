"""The table of streams: a row for each stream, and below it its expected writers, its open appends, and its writers (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from replsite.snapshot.table import HIDDEN, UNJUDGED
from replsite.status.series import Series
from replsite.status.words import Severity, Verdict
from streams.holds.functions_sql import ANY_WRITER, class_of
from streams.runtime.gc_pause import collector_paused

__all__ = ["ExpectedRow", "HolderRow", "StreamRow", "WriterRow", "read_writers"]

_WRITERS = """
SELECT stream, instance_name, abs(position), state, abs(last_write_position), last_fact_at, last_advance_at, facts_written, id
FROM streams_streamposition ORDER BY stream, state = 'retired', instance_name
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
    status: Verdict = UNJUDGED


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
    status: Verdict = UNJUDGED

    @property
    def name(self) -> str:
        """Its session or prepared transaction, in a few words."""
        if self.prepared:
            return f"prepared transaction {self.prepared}"
        return "a session that is ending" if self.pid is None else f"session {self.pid}"

    def may_be_of(self, writer: str) -> bool:
        """Returns true if the append may be this writer's."""
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
    status: Verdict = UNJUDGED
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

    @property
    def blocked(self) -> HolderRow | None:
        """The first append that is open for too long, or None."""
        return next((one for one in self.holders if one.status.severity >= Severity.WARNING), None)


def read_writers(cursor: Any) -> list[WriterRow]:
    """Returns all writers of all streams, sorted by stream. In each stream, retired writers come last."""
    cursor.execute(_WRITERS)
    with collector_paused():
        return [WriterRow(*row) for row in cursor.fetchall()]
