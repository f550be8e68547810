"""Gives the rows of the snapshot their status: one rule for each status word (pure).

The words are those of ``docs/reference/status-words.md``. A writer without new facts, or a reader of a quiet stream, is
idle and not in error. A reader is called gone if its heartbeat is missing. It is called stuck only if it has a heartbeat
and does not move. ``as_of`` is the time of the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from shlex import quote

from replsite.live_rows.jobs import JobRow
from replsite.live_rows.readers import ReaderRow, ReaderStreamRow
from replsite.live_rows.recorded import RecordedRow
from replsite.live_rows.streams import ExpectedRow, HolderRow, WriterRow
from replsite.site_settings import SiteSettings
from replsite.status.words import (
    ExpectedWord,
    Health,
    HealthWord,
    HoldWord,
    JobWord,
    Problem,
    ReaderWord,
    Severity,
    Verdict,
    WriterWord,
)
from streams.core.positions import RETIRED
from streams.core.sequences import FoundSequence
from streams.holds.weaknesses import Weakness
from streams.runtime.amounts import byte_size, counted, duration
from streams.runtime.silence import silent_seconds
from streams.stream_settings import StreamSettings

#: If a job is queued for longer, and no job from the queue is running, a ``runjobs`` process must be started.
JOB_WAITS_SECONDS = 60.0
_MOST_OF_ERROR = 300
#: The word of a disk that has less free space than it should.
DISK_FULL = "full"
#: A reader's error about trimmed facts contains this command as its remedy.
_RESYNC = "manage.py resync reader"


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds between the status words."""

    heartbeat_seconds: float = StreamSettings().heartbeat_seconds
    """Period of heartbeats. After three missed heartbeats a reader or recorder counts as gone."""
    blocked_after_seconds: float = SiteSettings().blocked_after_seconds
    """An append that is open for longer makes its stream and its writer *blocked*."""
    writing_within_seconds: float = 10.0
    """A writer whose last fact is younger is writing."""
    idle_after_seconds: float = 60.0
    """A stream without a new fact for this long is quiet."""
    current_within_seconds: float = 1.0
    """Facts younger than this may be on their way. A reader that misses only those is current."""
    stuck_after_seconds: float = SiteSettings().stuck_after_seconds
    """A reader is stuck if it did not move for this long, and facts were unread for this long."""
    falling_floor_facts: int = 100
    falling_floor_seconds: float = 5.0
    """Lag below either floor is never called falling behind, even if it grows."""
    went_back_shown_seconds: float = 60.0
    """For how long a reader that went back is shown as such."""
    left_behind_after_seconds: float = SiteSettings().left_behind_after_seconds
    """A named reader is left behind if no process ran it, and facts were unread, for longer than this."""
    reader_periods: Mapping[str, float] = field(default_factory=dict)
    """Reader name -> seconds between two runs that a timer starts. The reader may be away for so long in addition."""
    wanted_readers: Sequence[str] = ()
    """The names in REPLSITE_READERS."""

    @property
    def lost_after_seconds(self) -> float:
        """The age of the last heartbeat above which a reader or recorder counts as gone."""
        return 3 * self.heartbeat_seconds


def writer_verdict(writer: WriterRow, held: HolderRow | None, limits: Limits, as_of: datetime) -> Verdict:
    """Returns the status of a writer on a stream. ``held`` is the oldest open append that may be its own."""
    if writer.state == RETIRED:
        text = "Wrote nothing for an hour. Its next fact makes it active again."
        return Verdict(WriterWord.RETIRED, Severity.FINE, text)
    if held is not None and (status := hold_verdict(held, limits)).word == HoldWord.BLOCKED:
        return status
    if writer.last_write_at is not None and _age(writer.last_write_at, as_of) <= limits.writing_within_seconds:
        return Verdict(WriterWord.WRITING, Severity.FINE, "Writing.")
    if held is not None:
        return Verdict(WriterWord.WRITING, Severity.FINE, "Writing: a transaction that has appended is open.")
    return Verdict(WriterWord.IDLE, Severity.FINE, "Nothing to write.")


def _age(at: datetime, as_of: datetime) -> float:
    return max(0.0, (as_of - at).total_seconds())


def hold_verdict(held: HolderRow, limits: Limits) -> Verdict:
    """Returns the status of an open append: *open*, or *blocked*, if it holds its stream back for too long."""
    statement = f"; its last statement: {held.statement}" if held.statement else ""
    did = "locked stored positions" if held.keeps_rows else "appended"
    text = f"{_capital(held.words)} has {did} and has not ended{statement}."
    if held.seconds is None or held.seconds <= limits.blocked_after_seconds:
        return Verdict(HoldWord.OPEN, Severity.FINE, text)
    text += " Readers wait for it." if held.keeps_rows else " Linear readers wait for it."
    if held.prepared:
        name = held.prepared.replace("'", "''")
        command = f"ROLLBACK PREPARED '{name}'"
        return Verdict(
            HoldWord.BLOCKED, Severity.WRONG, f"{text} End it in SQL: COMMIT PREPARED, or {command}.", command
        )
    command = f"manage.py streams abort {quote(held.stream)}"
    if held.waits_for:
        text += (
            f" It waits for a lock of {held.waits_for}. Let that session end, or end it. Or end the append: {command}."
        )
        return Verdict(HoldWord.BLOCKED, Severity.WRONG, text, command, ("end lock holder", "end"))
    text += f" Let it commit or roll back, or end it: {command}."
    return Verdict(HoldWord.BLOCKED, Severity.WRONG, text, command, ("end",))


def recording_verdict(row: RecordedRow, limits: Limits, as_of: datetime) -> Verdict:
    """Returns the status of a recorded writer of a foreign server."""
    recorder, silence = f"process {row.process_id} on {row.host}", silent_seconds(as_of, row.heartbeat_at)
    missed = f" {_capital(counted(row.ranges_missed, 'range'))} of facts missed." if row.ranges_missed else ""
    if row.ended_at is not None or silence > limits.lost_after_seconds:
        severity = Severity.WARNING if row.ended_at is None else Severity.NOTE
        how = f"shows no sign of life for {duration(silence)}" if row.ended_at is None else "was ended"
        command = f"manage.py follow {quote(row.address)} --record {quote(row.record)}"
        if row.command:
            command = " ".join(("manage.py", row.command))
        text = f"Its recorder, {recorder}, {how}. Go on: {command}.{missed}"
        if row.ended_at is None:
            text += f" If it is not wanted any more: manage.py streams forget {quote(row.record)}."
        return Verdict(WriterWord.RECORDING_STOPPED, severity, text, command)
    severity = Severity.NOTE if row.ranges_missed else Severity.FINE
    subject = "A writer" if row.stream else "Nothing yet"
    return Verdict(WriterWord.RECORDED, severity, f"{subject} of {row.server_name}, recorded by {recorder}.{missed}")


def expected_verdict(row: ExpectedRow, as_of: datetime) -> Verdict:
    """Returns the status of a name or pattern of REPLSITE_EXPECTED_WRITERS."""
    if not row.active:
        last = "never" if row.last_write_at is None else f"{duration(_age(row.last_write_at, as_of))} ago"
        text = f"REPLSITE_EXPECTED_WRITERS expects it here. Its last fact: {last}. Start it, or read its log."
        return Verdict(ExpectedWord.MISSING, Severity.WRONG, text)
    written, least = row.facts_last_hour, row.least_per_hour
    if least is not None and written is not None and written < least:
        text = (
            f"{_capital(counted(written, 'fact'))} in the last hour; REPLSITE_EXPECTED_WRITERS expects {least:,g}. "
            "Read its log."
        )
        return Verdict(ExpectedWord.TOO_FEW, Severity.WRONG, text)
    return Verdict(ExpectedWord.THERE, Severity.FINE, "As expected.")


def reader_verdict(reader: ReaderRow, on: ReaderStreamRow, limits: Limits, as_of: datetime) -> Verdict:
    """Returns the status of a reader on a stream. Dead letters are reported only if nothing is worse."""
    verdict = _following_verdict(reader, on, limits)
    if on.parked_facts and verdict.severity < Severity.WARNING:
        return _parked(reader.name, on, as_of)
    return verdict


def _following_verdict(reader: ReaderRow, on: ReaderStreamRow, limits: Limits) -> Verdict:
    # The first rule that applies gives the word, so the order matters: a reader that is gone is not called stuck as well.
    if (absent := _absent_reader(reader, on, limits)) is not None:
        return absent
    if on.went_back_seconds is not None and on.went_back_seconds <= limits.went_back_shown_seconds:
        text = f"Its position became lower {duration(on.went_back_seconds)} ago: it handles facts again that it had handled."
        return Verdict(ReaderWord.WENT_BACK, Severity.WARNING, text)
    if on.lag_facts == 0 or on.lag_seconds <= limits.current_within_seconds:
        if on.lag_facts == 0 and (on.quiet_seconds is None or on.quiet_seconds > limits.idle_after_seconds):
            return Verdict(ReaderWord.IDLE, Severity.FINE, "Has read everything; the stream is quiet.")
        return Verdict(ReaderWord.CURRENT, Severity.FINE, "Keeps up.")
    return _reader_with_lag(reader, on, limits)


def _absent_reader(reader: ReaderRow, on: ReaderStreamRow, limits: Limits) -> Verdict | None:
    """Returns the status of a reader that does not run, has an error that it has not got past, or has an impossible position.

    A position is impossible if it is above the stream's sequence. Returns None for any other reader.
    """
    if reader.is_named:
        if on.above is not None:
            return _impossible_reader(reader.name, *on.above)
        if on.error and not (on.runs and on.lag_facts == 0):
            return _failed_reader(reader, on)
        return None if on.runs else _unrun_reader(reader, on, limits)
    if reader.ended_at is not None:
        reason = reader.close_reason or "no reason given"
        return Verdict(ReaderWord.GONE, Severity.FINE, f"Connection closed: {reason}.")
    return _silent_reader(reader, on) if reader.heartbeat_seconds > limits.lost_after_seconds else None


def _silent_reader(reader: ReaderRow, on: ReaderStreamRow) -> Verdict:
    silent = f"No sign of life for {duration(reader.heartbeat_seconds)}"
    if reader.kind != "spark":
        return Verdict(ReaderWord.GONE, Severity.WARNING, f"{silent}. Start it again; it goes on where it was.")
    command = f"manage.py streams forget {quote(reader.name)}"
    if on.trimmed_upto:
        text = (
            f"{silent}, and facts up to {on.trimmed_upto} that it has not read were trimmed: it cannot go on. Begin it anew "
            f"with another checkpoint. If it is not wanted any more: {command}."
        )
        return Verdict(ReaderWord.LEFT_BEHIND, Severity.WRONG, text, command, ("forget",))
    text = (
        f"{silent}: a micro-batch of it takes so long, or it has ended. Then start it again; it goes on where it was, and "
        f"holds trimming back for a week. If it is not wanted any more: {command}."
    )
    return Verdict(ReaderWord.GONE, Severity.WARNING, text, command, ("forget",))


def _impossible_reader(name: str, position: int, given_out: int) -> Verdict:
    command = f"manage.py resync reader {quote(name)}"
    text = (
        f"Its cursor is at {position}, but the stream's sequence has given out {given_out} only, so it would pass over the "
        f"next facts. If manage.py check_streams finds the sequence wrong, repair that. Otherwise: {command}."
    )
    return Verdict(ReaderWord.FAILED, Severity.WRONG, text, command, ("resync",))


def _failed_reader(reader: ReaderRow, on: ReaderStreamRow) -> Verdict:
    error = on.error if len(on.error) <= _MOST_OF_ERROR else f"{on.error[:_MOST_OF_ERROR]}..."
    how = "Runs again, and has not got beyond what stopped it" if on.runs else "Ended with an error"
    behind = f" {_capital(_behind(on))}." if on.lag_facts else ""
    if _RESYNC in on.error:
        command = f"manage.py resync reader {quote(reader.name)}"
        cure = f"If those facts may be missed: {command}."
    else:
        command = _start_of(reader)
        cure = f"Mend its cause, then start it again: {command}."
    text = f"{how}: {_sentence(error)}{behind} {cure}"
    return Verdict(
        ReaderWord.FAILED,
        Severity.WRONG,
        text,
        command,
        ("resync",) if _RESYNC in on.error else ("resync", "forget"),
    )


def _unrun_reader(reader: ReaderRow, on: ReaderStreamRow, limits: Limits) -> Verdict:
    since = f"It has not run for {duration(on.unrun_seconds)}"
    if on.trimmed_upto:
        command = f"{_RESYNC} {quote(reader.name)}"
        text = (
            f"{since}, and facts up to {on.trimmed_upto} that it has not read were trimmed, so it cannot go on. If those may "
            f"be missed: {command}."
        )
        return Verdict(ReaderWord.LEFT_BEHIND, Severity.WRONG, text, command, ("resync", "forget"))
    command = _start_of(reader)
    too_long = limits.left_behind_after_seconds + limits.reader_periods.get(reader.name, 0.0)
    if on.lag_facts and min(on.unrun_seconds, on.lag_seconds) > too_long:
        forget = f"manage.py streams forget {quote(reader.name)}"
        text = f"{since}, and it is {_behind(on)}. Start it: {command}. If it is not wanted any more: {forget}."
        return Verdict(ReaderWord.LEFT_BEHIND, Severity.WRONG, text, command, ("forget", "resync"))
    read = f"{_capital(_behind(on))}" if on.lag_facts else "It has read everything"
    if not on.has_ended:
        text = f"No sign of life for {duration(on.unrun_seconds)}. {read}. Start it again; it goes on where it was."
        return Verdict(ReaderWord.GONE, Severity.WARNING, text)
    if reader.name in limits.wanted_readers and on.unrun_seconds > too_long:
        text = f"REPLSITE_READERS names it. {since}. {read}. Start it: {command}."
        return Verdict(ReaderWord.STOPPED, Severity.WARNING, text, command)
    return Verdict(ReaderWord.STOPPED, Severity.NOTE if on.lag_facts else Severity.FINE, f"{since}. {read}.")


def _start_of(reader: ReaderRow) -> str:
    return reader.command or f"manage.py runhandlers {quote(reader.name)}"


def _parked(name: str, on: ReaderStreamRow, as_of: datetime) -> Verdict:
    number = counted(on.parked_facts, "fact")
    more = "" if on.parked_exact else "More than "
    command = f"manage.py parked list {quote(name)}"
    text = (
        f"{more}{number} put aside, the first {duration(_age(on.parked_since or as_of, as_of))} ago; the last error: "
        f"{_sentence(on.parked_error[:_MOST_OF_ERROR])} See {command}, then retry or drop them."
    )
    if on.retry_waits:
        when = "within seconds" if on.runs else "when its process starts"
        text += f" A retry was asked for and happens {when}."
    return Verdict(ReaderWord.PARKING, Severity.WARNING, text, command, ("retry", "parked"))


def missing_reader_verdict(name: str) -> Verdict:
    """Returns the status of a reader that REPLSITE_READERS names, and of which this database has no row."""
    text = (
        f"REPLSITE_READERS names it, but there is no trace of {name} within a day. Start it; it goes on where it was."
    )
    return Verdict(ReaderWord.NEVER_SEEN, Severity.WARNING, text)


def _reader_with_lag(reader: ReaderRow, on: ReaderStreamRow, limits: Limits) -> Verdict:
    behind = _behind(on)
    if on.waits_for:
        text = (
            f"Has read everything up to the linear position; {on.waits_for} holds the stream back. {_capital(behind)}."
        )
        return Verdict(ReaderWord.WAITING, Severity.NOTE, text)
    unmoved = on.unmoved_seconds or 0.0
    if unmoved >= limits.stuck_after_seconds <= on.lag_seconds:
        cure = "It lives but does not move: look at its log, then restart it or disconnect it."
        text = f"{_capital(behind)}, position unchanged for {duration(unmoved)}. {cure}"
        return Verdict(
            ReaderWord.STUCK, Severity.WRONG, text, actions=("disconnect",) if reader.kind == "connection" else ()
        )
    change = on.lag_change_per_second or 0.0
    above_floor = on.lag_facts >= limits.falling_floor_facts and on.lag_seconds >= limits.falling_floor_seconds
    if change > 0 and above_floor:
        text = (
            f"{_capital(behind)}, and {change:,.0f} facts/s more. It handles facts more slowly than they are written."
        )
        return Verdict(ReaderWord.FALLING_BEHIND, Severity.WARNING, text)
    eta = f"; current in about {duration(on.lag_facts / -change)}" if change < 0 else ""
    return Verdict(ReaderWord.CATCHING_UP, Severity.NOTE, f"{_capital(behind)}{eta}.")


def _behind(on: ReaderStreamRow) -> str:
    about = "" if on.lag_exact else "about "
    return f"{about}{counted(on.lag_facts, 'fact')}, {duration(on.lag_seconds)} behind"


def job_verdict(job: JobRow, as_of: datetime) -> Verdict:
    if job.killed:
        command = "manage.py runjobs"
        cure = f"A queued one is begun again by {command}, others by their command."
        text = f"Its process was killed; what it did stays. {cure}"
        return Verdict(JobWord.KILLED, Severity.WARNING, text, command, ("resume",))
    if job.state == JobWord.QUEUED:
        return _queued_job(job, as_of)
    if job.state == JobWord.FAILED:
        reason = job.error.strip().partition("\n")[0][:_MOST_OF_ERROR]
        return Verdict(
            JobWord.FAILED, Severity.WARNING, reason or "No reason given; look at its log.", actions=("resume",)
        )
    if job.state == JobWord.DONE and job.differences:
        return _differing_job(job)
    sentences = {
        JobWord.RUNNING: f"{duration(job.seconds_left)} left in this stage." if job.seconds_left is not None else "",
        JobWord.CANCELLED: "What it had done stays.",
    }
    word = JobWord(job.state)
    ends = word == JobWord.RUNNING and bool(job.cancel_asked_by)
    return Verdict(word, Severity.FINE, "Stops at its next step." if ends else sentences.get(word, ""))


def _differing_job(job: JobRow) -> Verdict:
    text = f"{_capital(counted(job.differences, 'difference'))} in {job.where}"
    if not job.repair:
        text += " cannot be recomputed and are left. Its page lists them."
        return Verdict(JobWord.WITH_DIFFERENCES, Severity.WARNING, text)
    text += f". Repair them: {job.repair}."
    return Verdict(JobWord.WITH_DIFFERENCES, Severity.WARNING, text, job.repair, ("repair",))


def _queued_job(job: JobRow, as_of: datetime) -> Verdict:
    waits = _age(job.queued_at or as_of, as_of)
    if job.is_served or waits <= JOB_WAITS_SECONDS:
        return Verdict(JobWord.QUEUED, Severity.NOTE, "Waits for its turn.")
    command = "manage.py runjobs"
    text = f"It has not been started for {duration(waits)}. Start {command}."
    return Verdict(JobWord.WAITING, Severity.WARNING, text, command)


def sequence_verdict(found: FoundSequence | None, stored: int, in_tables: int) -> Verdict | None:
    """Returns a verdict if the stream's sequence is not as it must be, or not where it must be, and None otherwise.

    ``stored`` is the highest stored position, and ``in_tables`` the highest ID in the tables.
    """
    if found is None:
        return None
    command = "manage.py check_streams --repair"
    behind, loses_facts = found.behind(in_tables, stored), any(fault.loses_facts for fault in found.faults)
    if behind and not loses_facts:
        place = {
            "behind stored position": f"below the stored position {stored}: the next IDs would be given out again",
            "behind table": f"below {in_tables}, the highest ID in the tables: the next IDs would be given out again",
        }.get(behind, "before its first value: no reader would get the fact with the next ID")
        text = f"The sequence is at {found.last_value}, {place}. Stop the writers of {found.stream}, then: {command}."
        return Verdict("sequence behind", Severity.WRONG, text, command, ("positions",))
    if not found.faults:
        return None
    severity = Severity.WRONG if loses_facts or found.is_almost_used_up else Severity.WARNING
    actions = ("positions",) if found.is_mendable else ()
    return Verdict("sequence unfit", severity, found.sentence, command if actions else "", actions)


def holds_verdict(found: Sequence[Weakness]) -> Verdict | None:
    """Returns a verdict if readers can miss facts of the stream, because of a trigger or a sequence, and None otherwise."""
    if not found:
        return None
    command = "manage.py check_streams"
    problems = _capital("; ".join(dict.fromkeys(weakness.problem for weakness in found[:3])))
    text = f"{problems}. Readers can miss facts. {command} says what to do, and mends most of it with --repair."
    return Verdict("holds unfit", Severity.WRONG, text, command)


def unannounced_verdict(seconds: float, stored: int, in_tables: int, limits: Limits) -> Verdict | None:
    """Returns a verdict if there are facts for ``seconds`` that no stored position covers, for no reason, and None otherwise."""
    if seconds <= limits.blocked_after_seconds:
        return None
    command = "manage.py check_streams"
    text = (
        f"There are facts up to {in_tables}, and no stored position has risen above {stored} for {duration(seconds)}, so "
        f"followers do not get them. {command} says whether its holds are in order. Otherwise nobody can look and store: the "
        "role of the site's processes must be allowed to call streams_look and to write streams_streamposition, and no session "
        "may keep that table locked."
    )
    return Verdict("not announced", Severity.WRONG, text, command)


def tables_verdict(tables: Sequence[str]) -> Verdict:
    """Returns the verdict on tables whose next rows would get numbers that are taken. There is at least one."""
    command = "manage.py check_streams --repair"
    more = f", and {len(tables) - 1} more tables" if len(tables) > 1 else ""
    text = f"The sequence of its numbers is below those of its rows{more}: new rows are refused. Run: {command}."
    return Verdict("sequence behind", Severity.WRONG, text, command, ("positions",))


def disk_verdict(folder: str, free_bytes: int, wanted_bytes: int) -> Verdict | None:
    """Returns a verdict if less than ``wanted_bytes`` are free on the disk of ``folder``, and None otherwise."""
    if free_bytes >= wanted_bytes:
        return None
    text = (
        f"{byte_size(free_bytes)} are free at {folder}, less than {byte_size(wanted_bytes)}. Remove old archives and "
        "imports, make the disk larger, or see the how-to about databases that are too big."
    )
    return Verdict(DISK_FULL, Severity.WRONG, text, actions=("archives",))


def worst(verdicts: Iterable[Verdict], otherwise: Verdict) -> Verdict:
    """Returns the most severe verdict, the first of equal ones. Returns ``otherwise`` if there is none."""
    return max(verdicts, key=lambda verdict: verdict.severity, default=otherwise)


def site_health(problems: Iterable[Problem], summary: str) -> Health:
    """Returns the state of the whole site. ``summary`` counts the site's parts, and is shown if all is well."""
    found = sorted(problems, key=lambda problem: -problem.verdict.severity)
    if not found or found[0].verdict.severity < Severity.WARNING:
        return Health(HealthWord.WELL, f"All is well: {summary}.", tuple(found))
    first = found[0]
    word = HealthWord.WRONG if first.verdict.severity == Severity.WRONG else HealthWord.LOOK
    others = sum(problem.verdict.severity >= Severity.WARNING for problem in found) - 1
    more = f" ({others} more below)" if others else ""
    return Health(word, f"{first.words}: {first.verdict.sentence}{more}", tuple(found))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
