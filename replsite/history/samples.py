"""Converts a snapshot into rows of history (pure): positions of streams and readers, and changes of status.

All streams are sampled. Then readers on streams are sampled, the worst first, until there are ``MOST_SUBJECTS`` rows.
Readers whose name is not plain (``plain_label``) share the label ``other``, as in the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from replsite.live_rows.snapshot import Snapshot
from replsite.status.words import Severity, Verdict, WriterWord
from streams.runtime.text import plain_label

MOST_SUBJECTS = 1_000


_NOT_THERE = Verdict("not there", Severity.FINE, "It is not listed any more.")
Subject = tuple[str, str, str]
"""(stream, writer, reader). One of the last two is empty."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One row of the table of samples, with the columns of ``streams.models.samples.Sample`` except the step."""

    stream: str
    reader: str
    position: int
    waiting: int
    seconds: float
    severity: int
    word: str


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the status of a subject (stream, writer, reader), or of the whole site if all three names are empty.

    ``was`` is the status word before the change, or empty if the subject is new.
    """

    subject: Subject
    was: str
    now: Verdict
    at: datetime | None = None
    """None: the moment of the sample."""


def samples_of(snapshot: Snapshot) -> list[SampleRow]:
    """Returns a row for each stream, for each open reader on each of its streams, and for the storage."""
    rows = {}
    for stream in snapshot.streams:
        oldest = max((holder.seconds or 0.0 for holder in stream.holders), default=0.0)
        row = SampleRow(
            stream.name,
            "",
            stream.linear_position,
            len(stream.holders),
            oldest,
            int(stream.status.severity),
            str(stream.status.word),
        )
        rows[stream.name, ""] = row
    rows |= {("", row.reader): row for row in _storage_samples(snapshot)}
    names: set[str] = set()
    for reader in snapshot.readers:
        if reader.closed_at is not None:
            continue
        label = plain_label(reader.name, names)
        names.add(label)
        for view in reader.streams:
            status = view.status
            row = SampleRow(
                view.stream,
                label,
                view.position,
                view.lag_facts,
                view.lag_seconds,
                int(status.severity),
                str(status.word),
            )
            before = rows.get((view.stream, label))
            if len(rows) < MOST_SUBJECTS or before is not None:
                rows[view.stream, label] = row if before is None else _worse(before, row)
    return list(rows.values())


def _storage_samples(snapshot: Snapshot) -> list[SampleRow]:
    """Returns rows for the database and its largest tables.

    The columns of these rows have other meanings: ``stream`` is empty, ``reader`` is the table's name, ``position`` the
    size in bytes, and ``waiting`` the number of rows.
    """
    storage = snapshot.storage
    tables = () if storage is None else (storage.database, *storage.tables)
    return [SampleRow("", table.name, table.size_bytes, table.rows or 0, 0.0, 0, "") for table in tables]


def _worse(row: SampleRow, other: SampleRow) -> SampleRow:
    """Returns one row for two readers with the same label: the lower position, the higher lag, the worse status."""
    worst = max(row, other, key=lambda r: r.severity)
    return SampleRow(
        row.stream, row.reader, min(row.position, other.position), max(row.waiting, other.waiting),
        max(row.seconds, other.seconds), worst.severity, worst.word,
    )  # fmt: skip


def verdicts_of(snapshot: Snapshot) -> dict[Subject, Verdict]:
    """Returns the status of every writer on its stream, and of every reader on each of its streams.

    The keys are ``(stream, writer, "")`` and ``(stream, "", label of the reader)``.
    """
    found: dict[Subject, Verdict] = {}
    for stream in snapshot.streams:
        for writer in stream.writers:
            found[stream.name, writer.writer, ""] = writer.status
        for e in stream.expected:
            known = found.get((stream.name, e.writer, ""))
            if e.status.severity >= Severity.WARNING and (known is None or e.status.severity > known.severity):
                found[stream.name, e.writer, ""] = e.status
    names: set[str] = set()
    for reader in snapshot.readers:
        label = plain_label(reader.name, names)
        names.add(label)
        for view in reader.streams:
            key = (view.stream, "", label)
            known = found.get(key)
            if (known is None or view.status.severity > known.severity) and (known or len(found) < MOST_SUBJECTS):
                found[key] = view.status
    return found


def changes_between(before: Mapping[Subject, tuple[str, int]], now: Mapping[Subject, Verdict]) -> list[Change]:
    """Returns a change for each subject whose severity changed, and for each writer that retired.

    ``before`` maps each subject to its (status word, severity) at the previous step. ``now`` maps each subject to its
    present status. A subject that appears or disappears is reported only if its status is not fine.
    """
    found = []
    for subject, verdict in now.items():
        was = before.get(subject)
        has_ended = verdict.word == WriterWord.RETIRED and was is not None and was[0] != WriterWord.RETIRED
        if has_ended or verdict.severity != (was[1] if was else 0):
            found.append(Change(subject, was[0] if was else "", verdict))
    lost = [(subject, word) for subject, (word, severity) in before.items() if severity and subject not in now]
    return found + [Change(subject, word, _NOT_THERE) for subject, word in lost]
