"""Reads a snapshot of the site: every stream, writer, reader and job with its present figures and status word.

``read_snapshot`` reads the database with a bounded number of queries, in one database snapshot. Each row comes from the
query of its table, gets its figures here, and its status from ``replsite.live_rows.verdicts``. The page, the commands, the
metrics and the health checks all show this ``Snapshot`` and make no queries of their own for it. Calls block, so they are
made from threads only. ``replsite.live_rows.shared`` shares one snapshot among all viewers of a process.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import connections

from replsite import installed_apps
from replsite.conf import site_settings
from replsite.disk import disk_free, disk_reserve
from replsite.live_rows.cells import worst_first
from replsite.live_rows.jobs import JobsView, read_jobs
from replsite.live_rows.lags import NO_LAG, facts_upto, read_lags
from replsite.live_rows.readers import MOST_PARKED, ReaderRow, ReaderStreamRow, read_readers
from replsite.live_rows.recorded import RecordedRow, read_recorded
from replsite.live_rows.snapshot import Snapshot
from replsite.live_rows.storage import STORAGE_SECONDS, StorageView, read_storage
from replsite.live_rows.stored_samples import read_samples, warm
from replsite.live_rows.streams import ExpectedRow, HolderRow, StreamRow, WriterRow, read_writers
from replsite.live_rows.verdicts import (
    Limits,
    disk_verdict,
    expected_verdict,
    hold_verdict,
    holds_verdict,
    job_verdict,
    missing_reader_verdict,
    reader_verdict,
    recording_verdict,
    sequence_verdict,
    site_health,
    tables_verdict,
    unannounced_verdict,
    worst,
    writer_verdict,
)
from replsite.live_rows.workers import read_workers
from replsite.status.expected_writers import expected_writers
from replsite.status.series import Series
from replsite.status.trends import History, Motion, Sample
from replsite.status.words import Health, Problem, ReaderWord, Severity, Verdict, WriterWord
from streams import registry
from streams.conf import stream_settings
from streams.core.names import is_name_of_writer
from streams.core.positions import RETIRED, linear_position, lowest_unread
from streams.core.sequences import read_sequences
from streams.core.tokens import VectorToken
from streams.core.watermarks import TrimMark, lost_facts, trim_marks
from streams.db import driver
from streams.db.consistent_read import limited_waits, read_only_snapshot
from streams.holds.end import blockers
from streams.holds.look import YOUNG_SECONDS, holders, keepers
from streams.holds.weaknesses import Weakness, losing
from streams.maintenance.check import highest_in_tables
from streams.maintenance.table_sequences import inspect_tables
from streams.reading.looker import look_now
from streams.runtime.amounts import counted
from streams.runtime.gc_pause import collector_paused
from streams.runtime.silence import silent_seconds
from streams.runtime.text import safe_text
from streams.runtime.version import program_version

#: The most retired writers that are listed for a stream. The latest are listed.
MOST_RETIRED = 20
_QUIET = Verdict("idle", Severity.FINE, "No process writes this stream now.")
_READS_NOTHING = Verdict("idle", Severity.FINE, "Connected; follows no stream yet.")
#: The state of a recorded writer.
_RECORDED = "recorded"


def limits() -> Limits:
    """Returns the limits of the status words. They come from the settings, or are defaults."""
    site = site_settings()
    return Limits(
        heartbeat_seconds=stream_settings().heartbeat_seconds,
        blocked_after_seconds=site.blocked_after_seconds,
        stuck_after_seconds=site.stuck_after_seconds,
        left_behind_after_seconds=site.left_behind_after_seconds,
        reader_periods=site.reader_periods,
        wanted_readers=stream_settings().readers,
    )


def read_current_snapshot(history: History | None = None) -> Snapshot:
    """Does the same, and reads the positions first if no process of the site does, as where only pages are served."""
    look_now(stream_settings().database, even_if_led=False)
    return read_snapshot(history)


def read_snapshot(history: History | None = None, using: str | None = None) -> Snapshot:
    """Reads the database, and returns a snapshot with status words.

    ``history`` holds the caller's earlier snapshots. It is needed to tell readers that are stuck or falling behind from
    those that catch up. Raises ``django.db.Error`` if the database cannot be read.
    """
    alias = using or stream_settings().database
    with limited_waits(alias, read_only_snapshot), connections[alias].cursor() as cursor:
        driver.bound_times(cursor)
        reading = _Reading(cursor, history or History())
    with collector_paused():
        return reading.snapshot()


def read_jobs_with_status(cursor: Any, as_of: datetime) -> JobsView:
    """Returns the jobs, worst first, the newest of equal ones first. A site without ``pipeline`` has none."""
    if not installed_apps.has("pipeline"):
        return JobsView()
    found = read_jobs(cursor)
    for job in found.jobs:
        job.status = job_verdict(job, as_of)
    return JobsView(worst_first(reversed(found.jobs)), found.kinds, found.queries)


class _Reading:
    """Reads the rows of one snapshot, and gives them their figures and status."""

    def __init__(self, cursor: Any, history: History) -> None:
        self.history, self.limits = history, limits()
        self.declarations = {d.name: d for d in (stream.declaration for stream in registry.all_streams())}
        # Positions and tables are read before the sequences. A sequence only grows, and is read outside of the
        # transaction's snapshot. So a sequence below a position is truly behind, even if the caller's transaction has no
        # fixed snapshot. In the other order, such a transaction could see: the sequence is read at 5, a writer reserves
        # and stores 6, and the position is read at 6.
        writers = read_writers(cursor, self.declarations)
        cursor.execute("SELECT clock_timestamp()")
        (self.as_of,) = cursor.fetchone()
        self.at = self.as_of.timestamp()
        self.held = self._read_holders(cursor)
        #: Stream -> the highest ID in its tables. Read seldom, because it only grows.
        self.in_tables: dict[str, int] = self._seldom(
            "in tables", lambda: highest_in_tables(cursor, list(self.declarations.values()))
        )
        self.sequences = read_sequences(cursor, list(self.declarations.values()))
        #: Streams that are only in the database may be declared by another version of the program. They come last.
        self.writers: dict[str, list[WriterRow]] = {name: [] for name in self.declarations}
        for row in writers:
            self.writers.setdefault(row.stream, []).append(row)
        self.unannounced_since = self._find_unannounced()
        names = {stream: [row.writer for row in rows] for stream, rows in self.writers.items()}
        self.readers = read_readers(cursor, history.positions, names, self.as_of, self.limits.lost_after_seconds)
        self.tables_behind: list[str] = self._while_well("tables behind", lambda: tables_behind(cursor))
        self.weaknesses: list[Weakness] = self._while_well("weaknesses", lambda: losing(cursor))
        self.recorded = read_recorded(cursor)
        self.workers = read_workers(cursor, stream_settings().worker_silence_seconds)
        self.jobs = read_jobs_with_status(cursor, self.as_of)
        self.storage: StorageView = self._seldom("storage", lambda: read_storage(cursor, self.as_of))
        self.trim_marks: dict[str, TrimMark] = self._seldom("trim marks", lambda: trim_marks(cursor))
        self.lags = read_lags(cursor, self.declarations, self.writers, self.readers)
        self.lags.add_recorded(self.recorded, self.readers)
        if history.lag.is_cold(self.at):
            warm(history, read_samples(cursor), self.readers)
        #: Stream -> writer -> the position up to which linear readers may read this writer's facts.
        self.linear_upto: dict[str, dict[str, int]] = {}

    def _seldom(self, name: str, read: Any) -> Any:
        return self.history.seldom(name, self.at, STORAGE_SECONDS, read)

    def _while_well(self, name: str, read: Any) -> Any:
        # What is wrong is looked at each time, so that it is well as soon as it was mended.
        return self._seldom(name, read) and self.history.seldom(name, self.at, 0.0, read)

    def _read_holders(self, cursor: Any) -> dict[str, list[HolderRow]]:
        asked = (*holders(cursor), *keepers(cursor))
        found = {(h.stream, h.pid, h.prepared, h.bound, h.writer_class): h for h in asked}
        first_seen = self.history.first_seen("holders", self.as_of, found.keys())
        since = {key: holder.since or first_seen[key] for key, holder in found.items()}
        old = [holder for key, holder in found.items() if self._age(since[key]) > YOUNG_SECONDS]
        waits = {pid: safe_text(str(b), 300) for b in (blockers(cursor, old) if old else ()) for pid in b.waiting}
        held: dict[str, list[HolderRow]] = {}
        for key, holder in found.items():
            row = HolderRow(
                stream=holder.stream,
                words=safe_text(str(holder), 300),
                writer_class=holder.writer_class,
                bound=holder.bound,
                pid=holder.pid,
                prepared=safe_text(holder.prepared),
                since=since[key],
                seconds=self._age(since[key]),
                state=holder.state or "",
                role=safe_text(holder.role),
                application=safe_text(holder.application),
                client=holder.client or "",
                statement=safe_text(_without_texts(holder.statement or ""), 120),
                waits_for=waits.get(holder.pid or 0, ""),
                keeps_rows=holder.keeps_rows,
            )
            row.status = hold_verdict(row, self.limits)
            held.setdefault(holder.stream, []).append(row)
        return held

    def _find_unannounced(self) -> dict[str, datetime]:
        """Returns the streams with facts that no stored position covers, and that no open append holds back.

        Each has the time since when this process sees it at the same position.
        """
        heads = {name: max((row.position for row in rows), default=0) for name, rows in self.writers.items()}
        late = {
            (name, head)
            for name, head in heads.items()
            # Open appends of a busy stream, which began above the facts, explain nothing.
            if self.in_tables.get(name, 0) > head and all(holder.bound > head for holder in self.held.get(name, ()))
        }
        seen = self.history.first_seen("unannounced", self.as_of, late)
        return {name: seen[name, head] for name, head in late}

    def snapshot(self) -> Snapshot:
        """Returns the snapshot. Is called once."""
        self._add_speeds()
        streams = [self._stream(name, rows) for name, rows in self.writers.items()]
        streams += recorded_streams(self.recorded, self.as_of, self.limits)
        self.streams = {stream.name: stream for stream in streams}
        self._follow()
        readers = worst_first((*self.readers, *self._missing()))
        return Snapshot(
            self.as_of,
            program_version(),
            self._health(streams, readers),
            # Streams that all writers have left come behind others of the same severity.
            worst_first(sorted(streams, key=lambda stream: all(w.state == RETIRED for w in stream.writers))),
            readers,
            self.workers,
            self.jobs,
            self.storage,
        )

    def _age(self, at: datetime) -> float:
        return max(0.0, (self.as_of - at).total_seconds())

    # --- writers --------------------------------------------------------------------------------------------------

    def _add_speeds(self) -> None:
        rows = {(row.stream, row.writer): row for found in self.writers.values() for row in found}
        written = self.history.written.add(self.at, {key: (row.facts_written,) for key, row in rows.items()})
        counters: dict[Hashable, float] = {
            name: sum(row.facts_written for row in found) for name, found in self.writers.items()
        }
        counters |= {key: row.facts_written for key, row in rows.items() if row.state != RETIRED}
        self.recent = self.history.facts.rates(self.at, counters)
        self.history.facts.forget_others(counters)
        for key, row in rows.items():
            if (grown := written[key]) is not None:
                row.facts_per_second = max(grown[1][0] / grown[0], 0.0)
            row.recent = _unless_nothing(self.recent.get(key, ()))
        self.expected = [
            (e, [row for row in self.writers.get(e.stream, ()) if is_name_of_writer(row.writer, e.writer)])
            for stream, names in expected_writers(site_settings().expected_writers).items()
            for e in (ExpectedRow(stream, writer, least_per_hour=least) for writer, least in names.items())
        ]
        hours = self.history.hours.add(self.at, {
            (e.stream, e.writer): (sum(row.facts_written for row in found),)
            for e, found in self.expected if e.least_per_hour is not None
        })  # fmt: skip
        for expected, found in self.expected:
            expected.active, expected.last_write_at = sum(row.state != RETIRED for row in found), _last_write_at(found)
            grown = hours.get((expected.stream, expected.writer))
            expected.facts_last_hour = None if grown is None else grown[1][0]
            expected.status = expected_verdict(expected, self.as_of)

    def _stream(self, name: str, rows: Sequence[WriterRow]) -> StreamRow:
        listed = self._listed(rows)
        for row in listed:
            self._add_writer_status(row)
        writers = worst_first(listed)
        declared, sequence = self.declarations.get(name), self.sequences.get(name)
        empty = declared.empty_position if declared is not None else 1
        stored, in_tables = max((row.position for row in rows), default=0), self.in_tables.get(name, 0)
        sequence_status = (
            sequence_verdict(sequence, stored, in_tables)
            or holds_verdict([found for found in self.weaknesses if found.stream == name])
            or unannounced_verdict(
                self._age(self.unannounced_since.get(name, self.as_of)), stored, in_tables, self.limits
            )
        )
        expected = worst_first(e for e, _ in self.expected if e.stream == name)
        stream = StreamRow(
            name=name,
            head=max((row.position for row in rows), default=empty),
            linear_position=linear_position(rows, empty),
            sequence_value=None if sequence is None else sequence.last_value,
            last_fact_at=_last_write_at(rows),
            status=_QUIET,
            writers=writers,
            retired_before=len(rows) - len(listed),
            recent=_unless_nothing(self.recent.get(name, ())),
            expected=expected,
            sequence_status=sequence_status,
            holders=self._holders(name),
        )
        blocked = stream.blocked and stream.blocked.status
        stream.status = sequence_status or blocked or _stream_status(writers, expected)
        return stream

    def _holders(self, stream: str) -> tuple[HolderRow, ...]:
        # A session or prepared transaction has a hold for each class of writers. The lowest comes first.
        shown: dict[tuple[int | None, str], HolderRow] = {}
        for holder in self.held.get(stream, ()):
            shown.setdefault((holder.pid, holder.prepared), holder)
        return tuple(shown.values())

    def _listed(self, rows: Sequence[WriterRow]) -> list[WriterRow]:
        shown_seconds = stream_settings().retired_shown_seconds
        retired = [r for r in rows if r.state == RETIRED and self._age(r.last_advance_at) <= shown_seconds]
        retired.sort(key=lambda row: row.last_advance_at, reverse=True)
        kept = {row.writer for row in retired[:MOST_RETIRED]}
        return [row for row in rows if row.state != RETIRED or row.writer in kept]

    def _add_writer_status(self, row: WriterRow) -> None:
        behind = NO_LAG if row.state == RETIRED else self.lags.of_writer(row)
        row.behind_facts, row.behind_exact = behind.facts, behind.exact
        row.behind_seconds = self._age(behind.oldest_at) if behind.oldest_at else 0.0
        holds = [h for h in self.held.get(row.stream, ()) if h.may_be_of(row.writer)]
        held = max(holds, key=lambda h: h.seconds or 0.0, default=None)
        if held is not None:
            row.held_since, row.held_seconds, row.held_by = held.since, held.seconds, held.words
        row.status = writer_verdict(row, held, self.limits, self.as_of)

    # --- readers --------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        # Thousands of readers may have the same positions, so one sample of each serves them all.
        shared: dict[int, list[tuple[str, Sample]]] = {}
        samples: dict[Hashable, Sample] = {}
        for reader in self.readers:
            if (found := shared.get(id(reader.positions))) is None:
                found = shared[id(reader.positions)] = [
                    (stream, Sample(have, self.lags.of(stream, have).facts))
                    for stream, have in reader.positions.items()
                ]
            samples.update({(reader.key, stream): sample for stream, sample in found})
        motions = self.history.add(self.at, samples)
        recent = self.history.lag.highest(self.at, {key: sample.lag_facts for key, sample in samples.items()})
        self.history.lag.forget_others(samples)
        moved: dict[Hashable, tuple[int, ...]] = {
            row.key: (row.bytes_in, row.bytes_out, row.buffer_bytes) for row in self.readers
        }
        speeds = self.history.moved.add(self.at, moved)
        # There may be thousands of readers with the same figures. Such readers share the rows of their streams, if they are
        # open, alive and not named, and if their positions and their recent movement are equal.
        known: dict[tuple[Any, ...], ReaderRow] = {}
        for reader in self.readers:
            reader.heartbeat_seconds = silent_seconds(self.as_of, reader.heartbeat_at)
            trends = tuple([(motions[reader.key, s], _unless_nothing(recent[reader.key, s])) for s in reader.positions])
            is_silent = reader.heartbeat_seconds > self.limits.lost_after_seconds
            twin = reader
            if not (reader.is_named or reader.ended_at is not None or is_silent):
                twin = known.setdefault((id(reader.positions), reader.kind == "connection", trends), reader)
            if twin is reader:
                self._add_streams(reader, trends)
            else:
                reader.streams, reader.status = twin.streams, twin.status
                reader.lag_facts, reader.lag_seconds = twin.lag_facts, twin.lag_seconds
            self._add_bytes(reader, speeds.get(reader.key))

    def _add_streams(self, reader: ReaderRow, trends: Sequence[tuple[Motion, Series]]) -> None:
        reader.streams = worst_first(
            self._stream_of(reader, stream, motion, series)
            for stream, (motion, series) in zip(reader.positions, trends, strict=True)
            if reader.positions[stream]
        )
        reader.lag_facts = sum(on.lag_facts for on in reader.streams)
        reader.lag_seconds = max((on.lag_seconds for on in reader.streams), default=0.0)
        reader.status = worst((on.status for on in reader.streams), _READS_NOTHING)
        if not reader.streams:
            nothing = self._stream_of(reader, "", Motion(), ())
            if nothing.status.severity != Severity.FINE or reader.ended_at is not None:
                reader.status = nothing.status

    def _stream_of(self, reader: ReaderRow, stream: str, motion: Motion, recent: Series) -> ReaderStreamRow:
        # Without a stream, the row tells only whether the reader runs.
        have = reader.positions.get(stream, {})
        lag, followed = self.lags.of(stream, have) if have else NO_LAG, self.streams.get(stream)
        row = ReaderStreamRow(
            stream=stream,
            positions=have,
            position=min(have.values(), default=0),
            lag_facts=lag.facts,
            lag_exact=lag.exact,
            lag_seconds=self._age(lag.oldest_at) if lag.oldest_at else 0.0,
            unmoved_seconds=motion.unmoved_seconds,
            lag_change_per_second=motion.lag_change_per_second,
            recent=recent,
            is_sent=reader.kind == "connection",
            went_back_seconds=motion.went_back_seconds,
            quiet_seconds=self._age(followed.last_fact_at) if followed and followed.last_fact_at else None,
        )
        change = motion.lag_change_per_second
        row.seconds_to_current = lag.facts / -change if lag.facts and change is not None and change < 0 else None
        if lag.facts and reader.kind != "connection" and followed is not None:
            row.waits_for = self._waits_for(have, followed)
        if have and reader.kind != "connection" and (mark := self.trim_marks.get(stream)) is not None:
            lost = lost_facts(mark, VectorToken.of(row.position, have))
            row.trimmed_upto = max(lost.values(), default=0)
        if reader.is_named:
            self._add_cursor(reader, row, None if followed is None else followed.sequence_value)
        row.status = reader_verdict(reader, row, self.limits, self.as_of)
        return row

    def _add_cursor(self, reader: ReaderRow, row: ReaderStreamRow, given_out: int | None) -> None:
        cursor = reader.cursors.get(row.stream)
        row.runs = row.stream in reader.runs_on if row.stream else bool(reader.runs_on)
        ended_at = reader.ended_at or reader.heartbeat_at
        # The reader runs, but no longer on this stream. Then the cursor's last move tells how long it has been unattended.
        if reader.runs_on and cursor is not None:
            ended_at = cursor.moved_at
        row.unrun_seconds = 0.0 if row.runs else silent_seconds(self.as_of, ended_at)
        row.has_ended = reader.ended_at is not None or bool(reader.runs_on)
        position = max(row.positions.values(), default=0)
        row.above = None if given_out is None or position <= max(given_out, 1) else (position, given_out)
        row.error = reader.error if cursor is None else cursor.error
        if cursor is not None:
            row.parked_facts, row.parked_exact = (
                min(cursor.parked_facts, MOST_PARKED),
                cursor.parked_facts <= MOST_PARKED,
            )
            row.parked_since, row.parked_error = cursor.parked_since, cursor.parked_error
            row.retry_waits = cursor.retry_waits

    def _waits_for(self, have: Mapping[str, int], stream: StreamRow) -> str:
        """Returns who holds back the stream that a reader waits for, or "" if the reader does not wait.

        A reader waits if it has read everything up to the linear position, and nothing beyond.
        """
        if not stream.holders or not have or max(have.values()) > stream.linear_position:
            return ""
        if (upto := self.linear_upto.get(stream.name)) is None:
            facts = facts_upto(self.writers[stream.name]).items()
            upto = self.linear_upto[stream.name] = {writer: min(at, stream.linear_position) for writer, at in facts}
        return "" if lowest_unread(have, upto) is not None else stream.holders[0].words

    def _add_bytes(self, reader: ReaderRow, grown: tuple[float, tuple[int, ...]] | None) -> None:
        if grown is None or reader.ended_at is not None:  # None: it was not watched long enough
            return
        bytes_in, bytes_out, unsent = (number / grown[0] for number in grown[1])
        reader.bytes_in_per_second, reader.bytes_out_per_second = max(bytes_in, 0.0), max(bytes_out, 0.0)
        room = stream_settings().send_buffer_limit_bytes - reader.buffer_bytes
        reader.seconds_to_overflow = max(room, 0) / unsent if unsent > 0 else None

    def _missing(self) -> list[ReaderRow]:
        known = {row.name for row in self.readers}
        return [
            ReaderRow(
                f"\nmissing {name}", name, "declared", "", "", None, self.as_of, self.as_of,
                status=missing_reader_verdict(name),
            )
            for name in dict.fromkeys(self.limits.wanted_readers) if name not in known
        ]  # fmt: skip

    # --- the whole ------------------------------------------------------------------------------------------------

    def _health(self, streams: Sequence[StreamRow], readers: Sequence[ReaderRow]) -> Health:
        problems: list[Problem] = []
        roots: dict[tuple[int | None, str], str] = {}
        held: dict[str, str] = {}
        for stream in streams:
            subject, status = f"Stream {stream.name}", stream.sequence_status
            problems += [Problem(subject, status, stream.name)] if status else []
            if (holder := stream.blocked) is not None:
                # One transaction may hold several streams back. What it does to the first is the cause of the others.
                held[stream.name] = root = roots.setdefault((holder.pid, holder.prepared), subject)
                problems.append(Problem(subject, holder.status, stream.name, root if root != subject else ""))
            writers: tuple[ExpectedRow | WriterRow, ...] = (*stream.expected, *stream.writers)
            problems += [
                Problem(f"Writer {w.writer} of {stream.name}", w.status)
                for w in writers
                # The stream's problem tells all about writers that are blocked.
                if _worth(w.status) and w.status.word != WriterWord.BLOCKED
            ]
        for reader in readers:
            is_waiting = reader.status.word == ReaderWord.WAITING
            cause = next((held[view.stream] for view in reader.streams if is_waiting and view.stream in held), "")
            if cause or _worth(reader.status):
                on = f" on {reader.streams[0].stream}" if reader.streams else ""
                subject = f"{reader.kind.capitalize()} {reader.name}{on}"
                problems.append(Problem(subject, reader.status, reader.about, cause))
        jobs = self.jobs.jobs
        problems += [
            Problem(f"Job {job.id} ({job.kind})", job.status, str(job.id)) for job in jobs if _worth(job.status)
        ]
        active = {w.writer for stream in streams for w in stream.writers if w.state != RETIRED}
        open_readers = sum(reader.closed_at is None and reader.runs for reader in readers)
        parts = (counted(len(streams), "stream"), counted(len(active), "writer"), counted(open_readers, "reader"))
        folder, free, wanted = _read_disk()
        if behind := self.tables_behind:
            problems.append(Problem(f"Table {behind[0]}", tables_verdict(behind)))
        if of_all := holds_verdict([found for found in self.weaknesses if not found.stream]):
            problems.append(Problem("Holds of all streams", of_all))
        full = disk_verdict(folder, free, wanted)
        problems += [Problem("Disk", full, folder)] if full else []
        return site_health(problems, ", ".join(parts))


def tables_behind(cursor: Any) -> list[str]:
    """Returns the tables whose next row would get a number that is taken."""
    return list(dict.fromkeys(found.table for found in inspect_tables(cursor) if not found.well))


def recorded_streams(rows: Iterable[RecordedRow], as_of: datetime, limits: Limits) -> list[StreamRow]:
    """Returns a row for each stream of each record, with the recorded writers."""
    by_stream: dict[str, list[RecordedRow]] = {}
    for row in rows:
        by_stream.setdefault(row.stream_name, []).append(row)
    streams = []
    for name, found in by_stream.items():
        writers: tuple[WriterRow, ...] = worst_first(
            WriterRow(
                name, row.writer, row.position, _RECORDED, row.last_fact_position, row.last_fact_at, row.last_advance_at,
                row.rows_recorded, status=recording_verdict(row, limits, as_of),
            )
            for row in found
        )  # fmt: skip
        positions = [row.position for row in found]
        stream = StreamRow(
            name, max(positions), min(positions), None, _last_write_at(writers), writers[0].status, writers
        )
        stream.recorded_from = found[0].server_name
        streams.append(stream)
    return streams


def _stream_status(writers: Sequence[WriterRow], expected: Sequence[ExpectedRow]) -> Verdict:
    # Of equal severity, the status of a writer that is writing comes first.
    active = [writer.status for writer in writers if writer.state != RETIRED]
    active += [e.status for e in expected if _worth(e.status)]
    return worst(sorted(active, key=lambda status: status.word != WriterWord.WRITING), _QUIET)


def _last_write_at(rows: Iterable[WriterRow]) -> datetime | None:
    return max((row.last_write_at for row in rows if row.last_write_at is not None), default=None)


def _unless_nothing(series: Series) -> Series:
    return series if any(series) else ()


def _worth(verdict: Verdict) -> bool:
    return verdict.severity >= Severity.WARNING


def _without_texts(statement: str) -> str:
    # The texts may be what users wrote.
    return re.sub(r"'(?:[^']|'')*(?:'|$)", "'…'", statement)


def _read_disk() -> tuple[str, int, int]:
    try:
        folder, free = disk_free()
    except OSError:  # health checks report the error; the rest of the snapshot does not need the folder
        return "", 0, 0
    return str(folder), free, disk_reserve()
