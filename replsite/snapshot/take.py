"""Takes a snapshot of the site: every stream, writer and reader with its present figures and status word.

``take_snapshot`` reads the database with a bounded number of queries, in one database snapshot. Then the pure rules of
``replsite.status.verdicts`` and ``replsite.status.lag`` compute the status words. The page, the commands, the metrics and
the health checks all show this ``Snapshot`` and make no queries of their own for it. Calls block, so they are made from
threads only. ``replsite.snapshot.shared`` shares one snapshot among all viewers of a process.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from replsite.conf import site_settings
from replsite.disk import disk_free, disk_reserve
from replsite.snapshot import queries as rows
from replsite.snapshot.cursors import with_cursors
from replsite.snapshot.jobs import read_jobs
from replsite.snapshot.queries import FarBehind, PositionRow, ReaderRow
from replsite.snapshot.recorded import RecordedRow, read_recorded, recorded_streams
from replsite.snapshot.samples import read_samples, warm
from replsite.snapshot.storage import STORAGE_SECONDS, read_storage
from replsite.snapshot.types import (
    ExpectedView,
    HolderView,
    JobsView,
    ReaderStreamView,
    ReaderView,
    Snapshot,
    StorageView,
    StreamView,
    WorkersView,
    WriterView,
)
from replsite.snapshot.workers import read_workers
from replsite.status.expected_writers import Expected, expected_writers
from replsite.status.lag import EMPTY, Unread, Window, unread
from replsite.status.series import Series
from replsite.status.trends import History, Motion, Sample
from replsite.status.verdicts import (
    ExpectedSeen,
    Health,
    HoldSeen,
    Limits,
    NamedReader,
    Problem,
    ReaderOnStream,
    ReaderWord,
    Severity,
    Verdict,
    WriterOnStream,
    WriterWord,
    judge_disk,
    judge_expected,
    judge_health,
    judge_hold,
    judge_missing_reader,
    judge_reader,
    judge_sequence,
    judge_tables,
    judge_writer,
    worst,
)
from streams import registry
from streams.conf import stream_settings
from streams.core.declaration import StreamDeclaration
from streams.core.names import is_name_of_writer
from streams.core.positions import RETIRED, linear_position, lowest_unread
from streams.core.sequences import FoundSequence, read_sequences
from streams.db import driver
from streams.db.consistent_read import read_only_snapshot
from streams.holds.end import blockers
from streams.holds.functions_sql import ANY_WRITER, class_of
from streams.holds.look import YOUNG_SECONDS, Holder, each_once, holders
from streams.maintenance.check import highest_in_tables
from streams.maintenance.table_sequences import inspect_tables
from streams.reading.looker import look_now
from streams.reading.reader_commands import command_of
from streams.runtime.amounts import counted
from streams.runtime.gc_pause import collector_paused
from streams.runtime.silence import silent_seconds
from streams.runtime.text import safe_text
from streams.runtime.version import program_version

__all__ = ["limits", "look_and_take_snapshot", "take_snapshot"]

#: The most retired writers that are listed for a stream. The latest are listed.
MOST_RETIRED = 20
_QUIET = Verdict("idle", Severity.FINE, "No process writes this stream now.")
_READS_NOTHING = Verdict("idle", Severity.FINE, "Connected; follows no stream yet.")


def limits() -> Limits:
    """Returns the limits of the status words. They come from the settings, or are defaults."""
    site = site_settings()
    return Limits(
        heartbeat_seconds=stream_settings().heartbeat_seconds,
        blocked_after_seconds=site.blocked_after_seconds,
        stuck_after_seconds=site.stuck_after_seconds,
        left_behind_after_seconds=site.left_behind_after_seconds,
        reader_periods=site.reader_periods,
    )


def look_and_take_snapshot(history: History | None = None) -> Snapshot:
    """Does the same, after a look at the streams where no process of the site looks, such as one that serves pages alone."""
    look_now(stream_settings().database, even_if_led=False)
    return take_snapshot(history)


def take_snapshot(history: History | None = None, using: str | None = None) -> Snapshot:
    """Reads the database, and returns a snapshot with status words.

    ``history`` holds the caller's earlier snapshots. It is needed to tell readers that are stuck or falling behind from
    those that catch up. Raises ``django.db.Error`` if the database cannot be read.
    """
    history = history or History()
    declarations = [stream.declaration for stream in registry.all_streams()]
    with read_only_snapshot(using or stream_settings().database) as cursor:
        driver.bound_times(cursor)
        # Positions and tables are read before the sequences. A sequence only grows, and is read outside of the
        # transaction's snapshot. So a sequence below a position is truly behind, even if the caller's transaction has no
        # fixed snapshot. In the other order, such a transaction could see: the sequence is read at 5, a writer reserves
        # and stores 6, and the position is read at 6.
        positions = rows.read_positions(cursor)
        as_of = rows.read_time(cursor)
        held = _read_holds(cursor, history, as_of)
        seldom = as_of.timestamp(), STORAGE_SECONDS
        in_tables = history.seldom("in tables", *seldom, lambda: highest_in_tables(cursor, declarations))
        sequences = read_sequences(cursor, declarations)
        by_stream: dict[str, list[PositionRow]] = {}
        for row in positions:
            by_stream.setdefault(row.stream, []).append(row)
        writers = {stream: [row.writer for row in found] for stream, found in by_stream.items()}
        given = rows.read_readers(cursor, history.positions), rows.read_cursors(cursor)
        readers = with_cursors(*given, writers, as_of, limits().gone_after_seconds)
        reading = _Reading(
            as_of=as_of,
            declarations={stream.name: stream for stream in declarations},
            positions=positions,
            by_stream=by_stream,
            held=held,
            sequences=sequences,
            in_tables=in_tables,
            tables_behind=_read_tables_behind(cursor, history, as_of),
            readers=readers,
            recorded=read_recorded(cursor),
            workers=read_workers(cursor, stream_settings().worker_silence_seconds),
            jobs=read_jobs(cursor, as_of),
            storage=history.seldom("storage", *seldom, lambda: read_storage(cursor, as_of)),
            disk=_read_disk(),
        )
        lags = _read_lags(cursor, reading)
        if history.lag.is_cold(as_of.timestamp()):
            warm(history, read_samples(cursor), reading.readers)
    with collector_paused():
        return _Assembly(reading, lags, limits(), history).snapshot()


@dataclass(frozen=True, slots=True)
class _Hold:
    """An open append of one class of writers, with the rules' figures of it."""

    holder: Holder
    since: datetime
    seen: HoldSeen

    def is_of(self, writer: str) -> bool:
        """Returns true if the append may be of this writer."""
        return self.holder.writer_class in (ANY_WRITER, class_of(writer))


def _read_holds(cursor: Any, history: History, as_of: datetime) -> dict[str, list[_Hold]]:
    """Returns ``{stream: its open appends}``, the lowest bound first. Asks what they wait for only if one is not young."""
    found = {(one.stream, one.pid, one.prepared, one.bound, one.writer_class): one for one in holders(cursor)}
    first_seen = history.first_seen(as_of, found.keys())
    aged = [
        (one, at := one.since or first_seen[key], max(0.0, (as_of - at).total_seconds())) for key, one in found.items()
    ]
    old = [one for one, _, age in aged if age > YOUNG_SECONDS]
    waits = {pid: safe_text(str(one), 300) for one in (blockers(cursor, old) if old else ()) for pid in one.waiting}
    held: dict[str, list[_Hold]] = {}
    for one, at, age in aged:
        seen = HoldSeen(
            stream=one.stream,
            holder=safe_text(str(one), 300),
            age=age,
            prepared=safe_text(one.prepared),
            statement=safe_text(_without_texts(one.statement or ""), 120),
            waits_for=waits.get(one.pid or 0, ""),
        )
        held.setdefault(one.stream, []).append(_Hold(one, at, seen))
    return held


def _without_texts(statement: str) -> str:
    """Returns an SQL statement with its quoted texts left out. They may be what users wrote."""
    return re.sub(r"'(?:[^']|'')*(?:'|$)", "'…'", statement)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The rows that were read from the database, still without status words."""

    as_of: datetime
    declarations: Mapping[str, StreamDeclaration]
    positions: Sequence[PositionRow]
    by_stream: Mapping[str, Sequence[PositionRow]]
    held: Mapping[str, Sequence[_Hold]]
    sequences: Mapping[str, FoundSequence]
    in_tables: Mapping[str, int]
    """The highest ID in the tables of each stream. Read seldom, because it only grows."""
    tables_behind: Sequence[str]
    """The tables whose next row would get a number that is taken."""
    readers: Sequence[ReaderRow]
    recorded: Sequence[RecordedRow]
    workers: WorkersView
    jobs: JobsView
    storage: StorageView | None
    disk: tuple[str, int, int]
    """(a folder on this process's disk, the free bytes there, the bytes that should stay free)"""

    def writers_of(self, stream: str) -> Sequence[PositionRow]:
        return self.by_stream.get(stream, ())

    def stream_names(self) -> list[str]:
        """Returns the declared streams, then streams that are only in the database.

        A stream that is only in the database may be declared by another version of the program.
        """
        return [*self.declarations, *sorted({row.stream for row in self.positions} - self.declarations.keys())]

    def facts_upto(self, stream: str) -> dict[str, int]:
        """Returns for each writer the position up to which it has facts that may be read."""
        return {row.writer: _last_fact(row) for row in self.writers_of(stream)}


def _last_fact(row: PositionRow) -> int:
    return row.position if row.last_write_position is None else min(row.position, row.last_write_position)


#: A reader's positions on a stream, in a hashable form: (stream, writers, their positions in the same order).
_Vector = tuple[str, tuple[str, ...], tuple[int, ...]]
_NO_LAG = Unread(0, True, None)


class _Lags:
    """The lags of readers. Readers with equal positions on a stream share one lag."""

    def __init__(self) -> None:
        self.known: dict[_Vector, Unread] = {}
        #: The same lags by the ``id()`` of the positions on the stream. Most readers share these objects.
        self._by_id: dict[int, Unread] = {}

    def of(self, stream: str, have: Mapping[str, int]) -> Unread:
        found = self._by_id.get(id(have))
        if found is None:
            found = self._by_id[id(have)] = self.known.get(_vector(stream, have), _NO_LAG)
        return found

    def of_writer(self, row: PositionRow) -> Unread:
        return self.known.get((row.stream, (row.writer,), (row.position,)), _NO_LAG)


def _vector(stream: str, have: Mapping[str, int]) -> _Vector:
    # Not sorted, because there may be very many. The database returns the writers of a vector in one order.
    return stream, tuple(have), tuple(have.values())


def _read_lags(cursor: Any, reading: _Reading) -> _Lags:
    """Computes the lags of readers, by comparing their positions with the newest facts of each stream.

    Also counts the facts above each active writer's position, because linear readers wait for these facts.
    """
    upto = {name: reading.facts_upto(name) for name in reading.declarations}
    heads = {name: max(found.values(), default=0) for name, found in upto.items()}
    with collector_paused():
        found = {_vector(stream, have): have for stream, have in _vectors(reading, heads)}
        behind: dict[_Vector, int] = {}
        for vector, have in found.items():
            if (low := lowest_unread(have, upto[vector[0]])) is not None:
                behind[vector] = low
    windows = _read_windows(cursor, reading, heads, behind)
    lags = _Lags()
    far: list[tuple[_Vector, FarBehind]] = []
    with collector_paused():
        for vector, low in behind.items():
            stream, have = vector[0], found[vector]
            lag = lags.known[vector] = unread(have, upto[stream], windows.get(stream, EMPTY))
            # The oldest unread fact may lie below the window. One more query looks up these facts for all such vectors.
            if lag.below_window:
                far.append((vector, FarBehind(reading.declarations[stream], low, heads[stream], have)))
    oldest = rows.read_oldest_unread(cursor, [wanted for _, wanted in far])
    for index, at in oldest.items():
        lag = lags.known[far[index][0]]
        oldest_at = at if lag.oldest_at is None else min(at, lag.oldest_at)
        lags.known[far[index][0]] = Unread(lag.facts, lag.exact, oldest_at)
    return lags


def _vectors(reading: _Reading, heads: Mapping[str, int]) -> Iterator[tuple[str, Mapping[str, int]]]:
    for positions in {id(reader.positions): reader.positions for reader in reading.readers}.values():
        for stream, have in positions.items():
            if stream in reading.declarations and have:
                yield stream, have
    for row in reading.positions:
        if row.state != RETIRED and row.position < heads.get(row.stream, 0):
            # The vector of a linear reader that waits for this writer: it has all facts up to the writer's position.
            yield row.stream, {row.writer: row.position}


def _read_windows(
    cursor: Any, reading: _Reading, heads: Mapping[str, int], behind: Mapping[_Vector, int]
) -> dict[str, Window]:
    lowest: dict[str, int] = {}
    for (stream, _, _), low in behind.items():
        lowest[stream] = min(low, lowest.get(stream, low))
    wanted = {name: (reading.declarations[name], low, heads[name]) for name, low in lowest.items()}
    return rows.read_windows(cursor, wanted)


def _read_tables_behind(cursor: Any, history: History, as_of: datetime) -> list[str]:
    """Returns the tables whose next row would get a number that is taken. Looks seldom, as long as there are none."""

    def read() -> list[str]:
        return list(dict.fromkeys(found.table for found in inspect_tables(cursor) if not found.well))

    known: list[str] = history.seldom("tables behind", as_of.timestamp(), STORAGE_SECONDS, read)
    return history.seldom("tables behind", as_of.timestamp(), 0.0, read) if known else known


def _read_disk() -> tuple[str, int, int]:
    """Returns a folder on the data directory's disk, the free bytes of the disk, and the bytes that should stay free."""
    try:
        folder, free = disk_free()
    except OSError:  # health checks report the error; the rest of the snapshot does not need the folder
        return "", 0, 0
    return str(folder), free, disk_reserve()


class _Assembly:
    """A builder that computes the status words and assembles the views of one snapshot."""

    def __init__(self, reading: _Reading, lags: _Lags, limits: Limits, history: History) -> None:
        self.reading = reading
        self.lags = lags
        self.limits = limits
        self.history = history
        self.at = reading.as_of.timestamp()
        written = {(row.stream, row.writer): row.facts_written for row in reading.positions}
        self.written = history.written.add(self.at, {key: (number,) for key, number in written.items()})
        self.facts = self._recent_facts(written)
        moved: dict[Hashable, tuple[int, ...]] = {
            row.key: (row.bytes_in, row.bytes_out, row.buffer_bytes) for row in reading.readers
        }
        self.moved = history.moved.add(self.at, moved)
        self.expected = expected_writers(site_settings().expected_writers)
        self.hours = history.hours.add(self.at, self._written_by_the_expected())
        #: Stream -> writer -> the position up to which linear readers may read this writer's facts.
        self.linear_upto: dict[str, dict[str, int]] = {}

    def _recent_facts(self, written: Mapping[tuple[str, str], int]) -> dict[Hashable, Series]:
        """Returns the recent facts per second of each stream and of each active writer.

        The key of a stream is its name. The key of a writer is (stream, writer).
        """
        counters: dict[Hashable, float] = dict.fromkeys(self.reading.stream_names(), 0)
        for (stream, _), number in written.items():
            counters[stream] += number
        for row in self.reading.positions:
            if row.state != RETIRED:
                counters[row.stream, row.writer] = row.facts_written
        found = self.history.facts.rates(self.at, counters)
        self.history.facts.forget_others(counters)
        return found

    def _written_by_the_expected(self) -> dict[Hashable, int]:
        """Returns a dictionary from (stream, expected name) to the number of facts that were written under this name.

        Names without a minimum per hour are left out.
        """
        return {
            (one.stream, one.writer): sum(row.facts_written for row in self._rows_of(one))
            for found in self.expected.values()
            for one in found
            if one.least_per_hour is not None
        }

    def _rows_of(self, expected: Expected) -> list[PositionRow]:
        rows = self.reading.writers_of(expected.stream)
        return [row for row in rows if is_name_of_writer(row.writer, expected.writer)]

    def snapshot(self) -> Snapshot:
        own = [self._stream(name) for name in self.reading.stream_names()]
        streams = (*own, *recorded_streams(self.reading.recorded, self.reading.as_of, self.limits))
        self.streams = {stream.name: stream for stream in own}
        last_fact = {stream.name: stream.last_fact_at for stream in streams}
        readers = _worst_first((*self._readers(last_fact), *self._missing()))
        return Snapshot(
            self.reading.as_of,
            program_version(),
            self._health(streams, readers),
            _worst_first(sorted(streams, key=_is_left)),
            readers,
            self.reading.workers,
            self.reading.jobs,
            self.reading.storage,
        )

    def _age(self, at: datetime | None) -> float | None:
        return None if at is None else max(0.0, (self.reading.as_of - at).total_seconds())

    def _silence(self, heard_at: datetime | None) -> float | None:
        return None if heard_at is None else silent_seconds(self.reading.as_of, heard_at)

    # --- writers --------------------------------------------------------------------------------------------------

    def _stream(self, name: str) -> StreamView:
        found = self.reading.writers_of(name)
        listed = self._listed(found)
        writers = _worst_first([self._writer(row) for row in listed])
        declared = self.reading.declarations.get(name)
        empty = declared.empty_position if declared is not None else 1
        head = max((row.position for row in found), default=empty)
        sequence = self.reading.sequences.get(name)
        stored = max((row.position for row in found), default=0)
        sequence_status = judge_sequence(sequence, stored, self.reading.in_tables.get(name, 0))
        expected = _worst_first([self._expected(one) for one in self.expected.get(name, ())])
        held = self._holders(name)
        blocked = next((one.status for one in held if _worth(one.status)), None)
        return StreamView(
            name=name,
            head=head,
            linear_position=linear_position(found, empty),
            sequence_value=None if sequence is None else sequence.last_value,
            last_fact_at=_last_fact_at(found),
            status=sequence_status or blocked or _stream_status(writers, expected),
            writers=writers,
            retired_before=len(found) - len(listed),
            recent=_unless_nothing(self.facts.get(name, ())),
            expected=expected,
            sequence_status=sequence_status,
            holders=held,
        )

    def _holders(self, stream: str) -> tuple[HolderView, ...]:
        held = self.reading.held.get(stream, ())
        kept = each_once(one.holder for one in held)
        return tuple(self._holder(one) for one in held if one.holder in kept)

    def _holder(self, hold: _Hold) -> HolderView:
        one = hold.holder
        return HolderView(
            pid=one.pid,
            prepared=hold.seen.prepared,
            since=hold.since,
            seconds=hold.seen.age,
            state=one.state or "",
            role=safe_text(one.role),
            application=safe_text(one.application),
            client=one.client or "",
            statement=hold.seen.statement,
            bound=one.bound,
            status=judge_hold(hold.seen, self.limits),
        )

    def _expected(self, one: Expected) -> ExpectedView:
        rows = self._rows_of(one)
        seen = ExpectedSeen(
            active=sum(row.state != RETIRED for row in rows),
            last_fact_age=self._age(_last_fact_at(rows)),
            least_per_hour=one.least_per_hour,
            facts_last_hour=self.hours.get((one.stream, one.writer)),
        )
        status = judge_expected(seen)
        return ExpectedView(one.stream, one.writer, seen.active, seen.facts_last_hour, one.least_per_hour, status)

    def _listed(self, found: Sequence[PositionRow]) -> list[PositionRow]:
        """Returns the writers to list: all active writers, and those that retired within ``retired_shown_seconds``.

        Of the retired writers only the latest ``MOST_RETIRED`` are listed.
        """
        shown_seconds = stream_settings().retired_shown_seconds
        retired = [r for r in found if r.state == RETIRED and (self._age(r.last_advance_at) or 0.0) <= shown_seconds]
        retired.sort(key=lambda row: row.last_advance_at, reverse=True)
        kept = {row.writer for row in retired[:MOST_RETIRED]}
        return [row for row in found if row.state != RETIRED or row.writer in kept]

    def _writer(self, row: PositionRow) -> WriterView:
        behind = _NO_LAG if row.state == RETIRED else self.lags.of_writer(row)
        holds = [one for one in self.reading.held.get(row.stream, ()) if one.is_of(row.writer)]
        held = max(holds, key=lambda one: one.seen.age or 0.0, default=None)
        seen = WriterOnStream(row.state == RETIRED, self._age(row.last_fact_at), None if held is None else held.seen)
        speed = self.written[row.stream, row.writer]
        return WriterView(
            stream=row.stream,
            writer=row.writer,
            position=row.position,
            state=row.state,
            behind_facts=behind.facts,
            behind_seconds=self._age(behind.oldest_at) or 0.0,
            behind_exact=behind.exact,
            last_write_position=row.last_write_position,
            last_write_at=row.last_fact_at,
            last_advance_at=row.last_advance_at,
            facts_written=row.facts_written,
            status=judge_writer(seen, self.limits),
            row_id=row.row_id,
            facts_per_second=None if speed is None else max(speed[0], 0.0),
            recent=_unless_nothing(self.facts.get((row.stream, row.writer), ())),
            held_since=None if held is None else held.since,
            held_seconds=None if held is None else held.seen.age,
            held_by="" if held is None else held.seen.holder,
        )

    # --- readers --------------------------------------------------------------------------------------------------

    def _readers(self, last_fact: Mapping[str, datetime | None]) -> list[ReaderView]:
        # Thousands of readers may have the same positions, so one sample of each serves them all.
        shared: dict[int, list[tuple[str, Sample]]] = {}
        samples: dict[Hashable, Sample] = {}
        for reader in self.reading.readers:
            if (found := shared.get(id(reader.positions))) is None:
                found = shared[id(reader.positions)] = [
                    (stream, Sample(have, self.lags.of(stream, have).facts))
                    for stream, have in reader.positions.items()
                ]
            samples.update({(reader.key, stream): sample for stream, sample in found})
        self.motions = self.history.add(self.at, samples)
        self.recent = self.history.lag.highest(self.at, {key: sample.lag_facts for key, sample in samples.items()})
        self.history.lag.forget_others(samples)
        self.last_fact = last_fact
        self.followed: dict[tuple[Any, ...], _Followed] = {}
        return [self._reader(reader) for reader in self.reading.readers]

    def _missing(self) -> list[ReaderView]:
        """Returns a view for each reader in REPLSITE_READERS that has no row and no cursor."""
        known = {row.name for row in self.reading.readers}
        wanted = [name for name in dict.fromkeys(stream_settings().readers) if name not in known]
        return [_missing_reader(name, self.reading.as_of) for name in wanted]

    def _reader(self, row: ReaderRow) -> ReaderView:
        heartbeat_seconds = self._silence(row.heartbeat_at) or 0.0
        followed = self._followed(row, heartbeat_seconds)
        runs = not row.is_named or bool(row.runs_on)
        return ReaderView(
            key=row.key,
            name=safe_text(row.name),
            kind=row.kind,
            served_by=safe_text(row.served_by),
            address=safe_text(row.address),
            process_id=row.process_id,
            connected_at=row.connected_at,
            heartbeat_at=row.heartbeat_at,
            heartbeat_seconds=heartbeat_seconds,
            bytes_in=row.bytes_in,
            bytes_out=row.bytes_out,
            lines_in=row.lines_in,
            lines_out=row.lines_out,
            buffer_bytes=row.buffer_bytes,
            closed_at=None if row.is_named else row.closed_at,
            close_reason=row.close_reason,
            lag_facts=followed.lag_facts,
            lag_seconds=followed.lag_seconds,
            status=followed.status,
            streams=followed.streams,
            waiting=row.waiting,
            runs=runs,
            has_row=row.has_row,
            rights=row.rights,
            **self._speeds(row),
        )

    def _followed(self, row: ReaderRow, heartbeat_seconds: float) -> _Followed:
        """Returns the streams of a reader with their figures.

        There may be thousands of readers with the same figures. Such readers share one object, if they are open, alive
        and not named, and if their positions and their recent movement are equal.
        """
        moved = tuple([self.motions[row.key, stream] for stream in row.positions])
        recent = tuple([_unless_nothing(self.recent[row.key, stream]) for stream in row.positions])
        if row.is_named or row.closed_at is not None or heartbeat_seconds > self.limits.gone_after_seconds:
            return self._followed_alone(row, moved, recent)
        key = (id(row.positions), row.kind == "connection", moved, recent)
        if (found := self.followed.get(key)) is None:
            found = self.followed[key] = self._followed_alone(row, moved, recent)
        return found

    def _followed_alone(self, row: ReaderRow, moved: Sequence[Motion], recent: Sequence[Series]) -> _Followed:
        streams = _worst_first(
            [
                self._reader_on_stream(row, stream, motion, series)
                for stream, motion, series in zip(row.positions, moved, recent, strict=True)
                if row.positions[stream]
            ]
        )
        return _Followed(
            streams=streams,
            lag_facts=sum(stream.lag_facts for stream in streams),
            lag_seconds=max((stream.lag_seconds for stream in streams), default=0.0),
            status=worst((stream.status for stream in streams), _READS_NOTHING) if streams else self._idle(row),
        )

    def _idle(self, row: ReaderRow) -> Verdict:
        """Returns the status of a reader that follows no stream."""
        verdict = judge_reader(self._seen(row, "", _NO_LAG, Motion(), None), self.limits)
        return _READS_NOTHING if verdict.severity == Severity.FINE and row.closed_at is None else verdict

    def _reader_on_stream(self, row: ReaderRow, stream: str, motion: Motion, recent: Series) -> ReaderStreamView:
        have = row.positions[stream]
        lag = self.lags.of(stream, have)
        seen = self._seen(row, stream, lag, motion, self.last_fact.get(stream))
        cursor = row.cursors.get(stream)
        return ReaderStreamView(
            stream=stream,
            positions=have,
            position=min(have.values()),
            lag_facts=lag.facts,
            lag_exact=lag.exact,
            lag_seconds=seen.lag_seconds,
            unmoved_seconds=motion.unmoved_seconds,
            status=judge_reader(seen, self.limits),
            lag_change_per_second=motion.lag_change_per_second,
            seconds_to_current=_seconds_to_current(lag.facts, motion.lag_change_per_second),
            recent=recent,
            error=seen.named.error if seen.named is not None else "",
            parked_facts=seen.named.parked_facts if seen.named is not None else 0,
            parked_exact=seen.named is None or seen.named.parked_exact,
            parked_since=cursor.parked_since if cursor is not None else None,
        )

    def _speeds(self, row: ReaderRow) -> dict[str, float | None]:
        """Returns bytes per second in and out, and the seconds until the unsent bytes reach their limit.

        Returns an empty dict for a closed reader, or for one that was not watched long enough.
        """
        speed = self.moved.get(row.key)
        if speed is None or row.closed_at is not None:
            return {}
        bytes_in, bytes_out, growth = speed
        room = stream_settings().send_buffer_limit_bytes - row.buffer_bytes
        return {
            "bytes_in_per_second": max(bytes_in, 0.0),
            "bytes_out_per_second": max(bytes_out, 0.0),
            "seconds_to_overflow": max(room, 0) / growth if growth > 0 else None,
        }

    def _seen(
        self, row: ReaderRow, stream: str, lag: Unread, motion: Motion, last_fact_at: datetime | None
    ) -> ReaderOnStream:
        return ReaderOnStream(
            lag_facts=lag.facts,
            lag_exact=lag.exact,
            lag_seconds=self._age(lag.oldest_at) or 0.0,
            heartbeat_age=self._silence(row.heartbeat_at) or 0.0,
            stream_quiet_seconds=self._age(last_fact_at),
            unmoved_seconds=motion.unmoved_seconds,
            lag_change_per_second=motion.lag_change_per_second,
            close_reason=None if row.closed_at is None else row.close_reason,
            went_back_seconds=motion.went_back_seconds,
            waits_for=self._waits_for(row, stream) if lag.facts and row.kind != "connection" else "",
            named=self._named(row, stream) if row.is_named else None,
            is_connection=row.kind == "connection",
            query=row.name if row.kind == "spark" else "",
        )

    def _named(self, row: ReaderRow, stream: str) -> NamedReader:
        """Returns the input of the status rules about a named reader: its process, error and dead letters."""
        cursor = row.cursors.get(stream)
        runs = stream in row.runs_on if stream else bool(row.runs_on)
        ended_at = row.closed_at or row.heartbeat_at
        # The reader runs, but no longer on this stream. Then the cursor's last move tells how long it has been unattended.
        if row.runs_on and cursor is not None:
            ended_at = cursor.moved_at
        position = max(row.positions.get(stream, {}).values(), default=0)
        given_out = self.streams[stream].sequence_value if stream in self.streams else None
        return NamedReader(
            name=row.name,
            command=command_of(row.name),
            above=None if given_out is None or position <= max(given_out, 1) else (position, given_out),
            runs=runs,
            unrun_seconds=0.0 if runs else self._silence(ended_at) or 0.0,
            has_ended=row.closed_at is not None or bool(row.runs_on),
            error=cursor.error if cursor is not None else row.error,
            is_wanted=row.name in stream_settings().readers,
            parked_facts=min(cursor.parked_facts, rows.MOST_PARKED) if cursor is not None else 0,
            parked_exact=cursor is None or cursor.parked_facts <= rows.MOST_PARKED,
            parked_seconds=(self._age(cursor.parked_since) or 0.0) if cursor is not None else 0.0,
            parked_error=cursor.parked_error if cursor is not None else "",
            retry_waits=cursor is not None and cursor.retry_waits,
        )

    def _waits_for(self, row: ReaderRow, stream: str) -> str:
        """Returns who holds back the stream that a reader waits for, or "" if the reader does not wait.

        A reader waits if it has read everything up to the linear position, and nothing beyond.
        """
        view, have = self.streams.get(stream), row.positions.get(stream)
        if view is None or not view.holders or not have or max(have.values()) > view.linear_position:
            return ""
        if (upto := self.linear_upto.get(stream)) is None:
            facts = self.reading.facts_upto(stream).items()
            upto = self.linear_upto[stream] = {writer: min(at, view.linear_position) for writer, at in facts}
        return "" if lowest_unread(have, upto) is not None else self.reading.held[stream][0].seen.holder

    # --- the whole ------------------------------------------------------------------------------------------------

    def _health(self, streams: Sequence[StreamView], readers: Sequence[ReaderView]) -> Health:
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
            writers: tuple[ExpectedView | WriterView, ...] = (*stream.expected, *stream.writers)
            problems += [
                Problem(f"Writer {one.writer} of {stream.name}", one.status)
                for one in writers
                # The stream's problem tells all about writers that are blocked.
                if _worth(one.status) and one.status.word != WriterWord.BLOCKED
            ]
        for reader in readers:
            is_waiting = reader.status.word == ReaderWord.WAITING
            cause = next((held[view.stream] for view in reader.streams if is_waiting and view.stream in held), "")
            if cause or _worth(reader.status):
                on = f" on {reader.streams[0].stream}" if reader.streams else ""
                subject = f"{reader.kind.capitalize()} {reader.name}{on}"
                problems.append(Problem(subject, reader.status, reader.about, cause))
        jobs = self.reading.jobs.jobs
        problems += [
            Problem(f"Job {job.id} ({job.kind})", job.status, str(job.id)) for job in jobs if _worth(job.status)
        ]
        active = {w.writer for stream in streams for w in stream.writers if w.state != RETIRED}
        open_readers = sum(reader.closed_at is None and reader.runs for reader in readers)
        parts = (counted(len(streams), "stream"), counted(len(active), "writer"), counted(open_readers, "reader"))
        folder, free, wanted = self.reading.disk
        if behind := self.reading.tables_behind:
            problems.append(Problem(f"Table {behind[0]}", judge_tables(behind)))
        full = judge_disk(folder, free, wanted)
        problems += [Problem("Disk", full, folder)] if full else []
        return judge_health(problems, ", ".join(parts))


def _stream_status(writers: Sequence[WriterView], expected: Sequence[ExpectedView]) -> Verdict:
    """Returns the worst status among active writers and expected writers with a problem.

    If several have the same severity, prefers the status of a writer that is writing.
    """
    active = [writer.status for writer in writers if writer.state != RETIRED]
    active += [one.status for one in expected if _worth(one.status)]
    return worst(sorted(active, key=lambda status: status.word != WriterWord.WRITING), _QUIET)


def _last_fact_at(rows: Sequence[PositionRow]) -> datetime | None:
    return max((row.last_fact_at for row in rows if row.last_fact_at is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Followed:
    """The streams of a reader, worst first, with the lag and status over all of them."""

    streams: tuple[ReaderStreamView, ...]
    lag_facts: int
    lag_seconds: float
    status: Verdict


def _missing_reader(name: str, as_of: datetime) -> ReaderView:
    return ReaderView(
        key=f"\nmissing {name}", name=name, kind="declared", served_by="", address="", process_id=None, connected_at=as_of,
        heartbeat_at=as_of, heartbeat_seconds=0.0, bytes_in=0, bytes_out=0, lines_in=0, lines_out=0, buffer_bytes=0,
        closed_at=None, close_reason="", lag_facts=0, lag_seconds=0.0, status=judge_missing_reader(name), streams=(),
    )  # fmt: skip


def _unless_nothing(series: Series) -> Series:
    """Returns the series, or () if it has only zeros and unknown values."""
    return series if any(series) else ()


def _seconds_to_current(facts: int, change_per_second: float | None) -> float | None:
    return facts / -change_per_second if facts and change_per_second is not None and change_per_second < 0 else None


def _worth(verdict: Verdict) -> bool:
    return verdict.severity >= Severity.WARNING


def _worst_first(views: Sequence[Any]) -> tuple[Any, ...]:
    """Sorts by severity, highest first. Equal ones keep their order."""
    return tuple(sorted(views, key=lambda view: -view.status.severity))


def _is_left(stream: StreamView) -> bool:
    """Returns true if every writer of the stream has retired.

    Such streams are sorted behind others of the same severity.
    """
    return all(writer.state == RETIRED for writer in stream.writers)
