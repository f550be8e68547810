"""Assigns status words to writers, readers and jobs, one rule for each word (pure).

The words are those of ``docs/reference/status-words.md``. A writer without new facts, or a reader of a quiet stream, is
idle and not in error. A reader is called gone if its heartbeat is missing. It is called stuck only if it has a heartbeat
and does not move. The rules take plain numbers. Reading the database and the clock is left to the callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from shlex import quote

from replsite.site_settings import SiteSettings
from streams.core.sequences import FoundSequence
from streams.runtime.amounts import byte_size, counted, duration
from streams.stream_settings import StreamSettings

__all__ = [
    "DISK_FULL",
    "ExpectedSeen",
    "ExpectedWord",
    "Health",
    "HealthWord",
    "HoldSeen",
    "HoldWord",
    "JobSeen",
    "JobWord",
    "Limits",
    "NamedReader",
    "Problem",
    "ReaderOnStream",
    "ReaderWord",
    "RecordingSeen",
    "Severity",
    "Verdict",
    "WriterOnStream",
    "WriterWord",
    "judge_disk",
    "judge_expected",
    "judge_health",
    "judge_hold",
    "judge_job",
    "judge_missing_reader",
    "judge_reader",
    "judge_recording",
    "judge_sequence",
    "judge_tables",
    "judge_writer",
    "worst",
]


#: If a job is queued for longer, and no job from the queue is running, a ``runjobs`` process must be started.
JOB_WAITS_SECONDS = 60.0
_MOST_OF_ERROR = 300
#: The word of a disk that has less free space than it should.
DISK_FULL = "full"
#: A reader's error about trimmed facts contains this command as its remedy.
_RESYNC = "manage.py resync reader"


class Severity(IntEnum):
    """The importance of a status. Pages and commands show the highest first."""

    FINE = 0
    NOTE = 1
    WARNING = 2
    WRONG = 3


class WriterWord(StrEnum):
    """Status words of a writer on a stream."""

    WRITING = "writing"
    IDLE = "idle"
    BLOCKED = "blocked"
    RETIRED = "retired"
    RECORDED = "recorded"
    RECORDING_STOPPED = "recording stopped"


class HoldWord(StrEnum):
    """Status words of an open append, and of a stream that it blocks."""

    OPEN = "open"
    BLOCKED = "blocked"


class ExpectedWord(StrEnum):
    """Status words of a writer that REPLSITE_EXPECTED_WRITERS requires."""

    THERE = "there"
    MISSING = "missing"
    TOO_FEW = "too few facts"


class ReaderWord(StrEnum):
    """Status words of a reader on a stream."""

    CURRENT = "current"
    IDLE = "idle"
    CATCHING_UP = "catching up"
    FALLING_BEHIND = "falling behind"
    STUCK = "stuck"
    GONE = "gone"
    WENT_BACK = "went back"
    NEVER_SEEN = "never seen"
    WAITING = "waiting"
    FAILED = "failed"
    LEFT_BEHIND = "left behind"
    STOPPED = "stopped"
    PARKING = "parking"


class JobWord(StrEnum):
    """Status words of a job."""

    QUEUED = "queued"
    WAITING = "waiting"
    RUNNING = "running"
    KILLED = "killed"
    DONE = "done"
    WITH_DIFFERENCES = "done with differences"
    FAILED = "failed"
    CANCELLED = "cancelled"


class HealthWord(StrEnum):
    """Status words of the whole site."""

    WELL = "well"
    LOOK = "look"
    WRONG = "wrong"


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

    @property
    def gone_after_seconds(self) -> float:
        """The age of the last heartbeat above which a reader or recorder counts as gone."""
        return 3 * self.heartbeat_seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status word with its severity and a sentence that gives the reason and what to do."""

    word: str
    severity: Severity
    sentence: str
    command: str = ""
    """The command in the sentence that solves the problem, ready to run. Empty: there is none."""
    actions: tuple[str, ...] = ()
    """The actions of the admin that solve the problem (``replsite.dashboard.action_links``), the best one first."""


@dataclass(frozen=True, slots=True)
class HoldSeen:
    """The figures from which the rules judge an open append."""

    stream: str
    holder: str
    """Its session or prepared transaction, in words."""
    age: float | None = None
    """Seconds since its transaction began. None: not known."""
    prepared: str = ""
    """The name of its prepared transaction. Empty: it has a session."""
    statement: str = ""
    waits_for: str = ""
    """The session for whose lock it waits, in words. Empty: it waits for no lock."""


@dataclass(frozen=True, slots=True)
class WriterOnStream:
    """The figures from which the rules judge a writer on one stream."""

    retired: bool = False
    last_fact_age: float | None = None
    """In seconds. None: it wrote no fact."""
    held: HoldSeen | None = None
    """The oldest open append that may be this writer's. None: there is none."""


@dataclass(frozen=True, slots=True)
class ExpectedSeen:
    """The figures from which the rules judge an expected writer."""

    active: int = 0
    """Number of writers of that name or pattern that are not retired."""
    last_fact_age: float | None = None
    """In seconds. None: no writer of that name ever wrote a fact."""
    least_per_hour: float | None = None
    facts_last_hour: int | None = None
    """None: not watched for an hour yet."""


@dataclass(frozen=True, slots=True)
class ReaderOnStream:
    """The figures from which the rules judge a reader on one stream."""

    lag_facts: int = 0
    lag_exact: bool = True
    """False: ``lag_facts`` is an estimate from the difference of IDs."""
    lag_seconds: float = 0.0
    heartbeat_age: float = 0.0
    stream_quiet_seconds: float | None = None
    """Age of the stream's newest fact. None: it has none."""
    unmoved_seconds: float | None = None
    """For how long its position did not move while watched. None: it was sampled only once."""
    lag_change_per_second: float | None = None
    """In facts. Above 0: the lag grows. None: not known yet."""
    close_reason: str | None = None
    """Why the connection was closed. None: it is open."""
    went_back_seconds: float | None = None
    """How long ago its position became lower. None: it never did while watched."""
    waits_for: str = ""
    """If a linear reader has read all that it may: who holds the stream back, in words. Empty: nobody."""
    named: NamedReader | None = None
    """None: it has no stored cursor."""
    is_connection: bool = False
    """True: a connection to one of our servers, which can end it."""
    query: str = ""
    """The name of a Spark query. Empty: another reader."""


@dataclass(frozen=True, slots=True)
class NamedReader:
    """The further figures from which the rules judge a reader with a stored cursor."""

    name: str
    command: str = ""
    """The command that runs it. Empty: ``manage.py runhandlers``."""
    runs: bool = True
    """True: a living process follows this stream as this reader."""
    unrun_seconds: float = 0.0
    """For how long no process has followed it. 0 while one does."""
    has_ended: bool = False
    """True: its process ended in order. False: it was killed, or hangs."""
    error: str = ""
    """Error that stopped it on this stream. It is kept until its cursor moves again."""
    above: tuple[int, int] | None = None
    """(its position, the last value of the stream's sequence) if it is above that value, which cannot be right."""
    is_wanted: bool = False
    """True: REPLSITE_READERS names it."""
    parked_facts: int = 0
    parked_exact: bool = True
    parked_seconds: float = 0.0
    """Age of the first dead letter."""
    parked_error: str = ""
    retry_waits: bool = False
    """True: an operator asked to retry dead letters, and no process has begun it."""


@dataclass(frozen=True, slots=True)
class RecordingSeen:
    """The figures from which the rules judge a recorded writer of a foreign server."""

    record: str
    server_name: str
    address: str = ""
    recorder: str = ""
    """The recording process and its host, in words."""
    heartbeat_age: float = 0.0
    has_ended: bool = False
    ranges_missed: int = 0


@dataclass(frozen=True, slots=True)
class JobSeen:
    """The figures from which the rules judge a job. ``waits_seconds`` is the time in the queue, None if it is not queued."""

    state: str
    killed: bool = False
    error: str = ""
    waits_seconds: float | None = None
    is_served: bool = False
    """True: another queued job is running, so a process carries them out."""
    asked_to_end: bool = False
    seconds_left: float | None = None
    differences: int = 0
    """The number of differences that a resync has left, and that no later one has compared again."""
    where: str = ""
    """The rooms in which they are, in words."""
    repair: str = ""
    """The command that repairs them. Empty: the job tried to, so they cannot be recomputed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A status that an operator should look at, with the name of its writer, reader, job or stream."""

    subject: str
    verdict: Verdict
    about: str = ""
    """The name that the verdict's actions take: of the stream or reader, the key of a connection, the job's number."""
    cause: str = ""
    """The subject of the problem that causes this one. It goes away with that one. Empty: none is known."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the whole site: a word, the worst status with its reason, and all problems, worst first."""

    word: HealthWord
    sentence: str
    problems: tuple[Problem, ...] = field(default=())


def judge_writer(seen: WriterOnStream, limits: Limits) -> Verdict:
    """Returns the status of a writer on a stream."""
    if seen.retired:
        text = "Wrote nothing for an hour. Its next fact makes it active again."
        return Verdict(WriterWord.RETIRED, Severity.FINE, text)
    if seen.held is not None and (held := judge_hold(seen.held, limits)).word == HoldWord.BLOCKED:
        return held
    if seen.last_fact_age is not None and seen.last_fact_age <= limits.writing_within_seconds:
        return Verdict(WriterWord.WRITING, Severity.FINE, "Writing.")
    if seen.held is not None:
        return Verdict(WriterWord.WRITING, Severity.FINE, "Writing: a transaction that has appended is open.")
    return Verdict(WriterWord.IDLE, Severity.FINE, "Nothing to write.")


def judge_hold(seen: HoldSeen, limits: Limits) -> Verdict:
    """Returns the status of an open append: *open*, or *blocked*, if it holds its stream back for too long."""
    statement = f"; its last statement: {seen.statement}" if seen.statement else ""
    text = f"{_capital(seen.holder)} has appended and has not ended{statement}."
    if seen.age is None or seen.age <= limits.blocked_after_seconds:
        return Verdict(HoldWord.OPEN, Severity.FINE, text)
    text += " Linear readers wait for it."
    if seen.prepared:
        name = seen.prepared.replace("'", "''")
        command = f"ROLLBACK PREPARED '{name}'"
        return Verdict(
            HoldWord.BLOCKED, Severity.WRONG, f"{text} End it in SQL: COMMIT PREPARED, or {command}.", command
        )
    command = f"manage.py streams abort {quote(seen.stream)}"
    if seen.waits_for:
        text += (
            f" It waits for a lock of {seen.waits_for}. Let that session end, or end it. Or end the append: {command}."
        )
        return Verdict(HoldWord.BLOCKED, Severity.WRONG, text, command, ("end lock holder", "end"))
    text += f" Let it commit or roll back, or end it: {command}."
    return Verdict(HoldWord.BLOCKED, Severity.WRONG, text, command, ("end",))


def judge_recording(seen: RecordingSeen, limits: Limits) -> Verdict:
    """Returns the status of a recorded writer of a foreign server."""
    missed = f" {_capital(counted(seen.ranges_missed, 'range'))} of facts missed." if seen.ranges_missed else ""
    if seen.has_ended or seen.heartbeat_age > limits.gone_after_seconds:
        severity = Severity.NOTE if seen.has_ended else Severity.WARNING
        how = "was ended" if seen.has_ended else f"shows no sign of life for {duration(seen.heartbeat_age)}"
        command = f"manage.py follow {quote(seen.address)} --record {quote(seen.record)}"
        text = f"Its recorder, {seen.recorder}, {how}. Go on: {command}.{missed}"
        return Verdict(WriterWord.RECORDING_STOPPED, severity, text, command)
    severity = Severity.NOTE if seen.ranges_missed else Severity.FINE
    return Verdict(
        WriterWord.RECORDED, severity, f"A writer of {seen.server_name}, recorded by {seen.recorder}.{missed}"
    )


def judge_expected(seen: ExpectedSeen) -> Verdict:
    """Returns the status of a name or pattern of REPLSITE_EXPECTED_WRITERS."""
    if not seen.active:
        last = "never" if seen.last_fact_age is None else f"{duration(seen.last_fact_age)} ago"
        text = f"REPLSITE_EXPECTED_WRITERS expects it here. Its last fact: {last}. Start it, or read its log."
        return Verdict(ExpectedWord.MISSING, Severity.WRONG, text)
    written, least = seen.facts_last_hour, seen.least_per_hour
    if least is not None and written is not None and written < least:
        text = (
            f"{_capital(counted(written, 'fact'))} in the last hour; REPLSITE_EXPECTED_WRITERS expects {least:,g}. "
            "Read its log."
        )
        return Verdict(ExpectedWord.TOO_FEW, Severity.WRONG, text)
    return Verdict(ExpectedWord.THERE, Severity.FINE, "As expected.")


def judge_reader(seen: ReaderOnStream, limits: Limits) -> Verdict:
    """Returns the status of a reader on a stream. Dead letters are reported only if nothing is worse."""
    verdict = _judge_following(seen, limits)
    if seen.named is not None and seen.named.parked_facts and verdict.severity < Severity.WARNING:
        return _parked(seen.named)
    return verdict


def _judge_following(seen: ReaderOnStream, limits: Limits) -> Verdict:
    """Returns the status of a reader without regard to its dead letters."""
    # The first rule that applies gives the word, so the order matters: a reader that is gone is not called stuck as well.
    if (absent := _absent_reader(seen, limits)) is not None:
        return absent
    if seen.went_back_seconds is not None and seen.went_back_seconds <= limits.went_back_shown_seconds:
        text = f"Its position became lower {duration(seen.went_back_seconds)} ago: it handles facts again that it had handled."
        return Verdict(ReaderWord.WENT_BACK, Severity.WARNING, text)
    if seen.lag_facts == 0 or seen.lag_seconds <= limits.current_within_seconds:
        return _reader_without_lag(seen, limits)
    return _reader_with_lag(seen, limits)


def _absent_reader(seen: ReaderOnStream, limits: Limits) -> Verdict | None:
    """Returns the status of a reader that does not run, has an error that it has not got past, or has an impossible position.

    A position is impossible if it is above the stream's sequence. Returns None for any other reader.
    """
    if (named := seen.named) is not None:
        if named.above is not None:
            return _impossible_reader(named, *named.above)
        if named.error and not (named.runs and seen.lag_facts == 0):
            return _failed_reader(seen, named)
        return None if named.runs else _unrun_reader(seen, named, limits)
    if seen.close_reason is not None:
        reason = seen.close_reason or "no reason given"
        return Verdict(ReaderWord.GONE, Severity.FINE, f"Connection closed: {reason}.")
    if seen.heartbeat_age > limits.gone_after_seconds:
        return _silent_reader(seen)
    return None


def _silent_reader(seen: ReaderOnStream) -> Verdict:
    silent = f"No sign of life for {duration(seen.heartbeat_age)}"
    if not seen.query:
        return Verdict(ReaderWord.GONE, Severity.WARNING, f"{silent}. Start it again; it goes on where it was.")
    command = f"manage.py streams forget {quote(seen.query)}"
    text = (
        f"{silent}: a micro-batch of it takes so long, or it has ended. Then start it again; it goes on where it was, and "
        f"holds trimming back for a week. If it is not wanted any more: {command}."
    )
    return Verdict(ReaderWord.GONE, Severity.WARNING, text, command, ("forget",))


def _impossible_reader(named: NamedReader, position: int, given_out: int) -> Verdict:
    command = f"manage.py resync reader {quote(named.name)}"
    text = (
        f"Its cursor is at {position}, but the stream's sequence has given out {given_out} only, so it would pass over the "
        f"next facts. If manage.py check_streams finds the sequence wrong, repair that. Otherwise: {command}."
    )
    return Verdict(ReaderWord.FAILED, Severity.WRONG, text, command, ("resync",))


def _failed_reader(seen: ReaderOnStream, named: NamedReader) -> Verdict:
    error = named.error if len(named.error) <= _MOST_OF_ERROR else f"{named.error[:_MOST_OF_ERROR]}..."
    how = "Runs again, and has not got beyond what stopped it" if named.runs else "Ended with an error"
    behind = f" {_capital(_behind(seen))}." if seen.lag_facts else ""
    if _RESYNC in named.error:
        command = f"manage.py resync reader {quote(named.name)}"
        cure = f"If those facts may be missed: {command}."
    else:
        command = _start_of(named)
        cure = f"Mend its cause, then start it again: {command}."
    text = f"{how}: {_sentence(error)}{behind} {cure}"
    return Verdict(
        ReaderWord.FAILED,
        Severity.WRONG,
        text,
        command,
        ("resync",) if _RESYNC in named.error else ("resync", "forget"),
    )


def _unrun_reader(seen: ReaderOnStream, named: NamedReader, limits: Limits) -> Verdict:
    since = f"It has not run for {duration(named.unrun_seconds)}"
    command = _start_of(named)
    too_long = limits.left_behind_after_seconds + limits.reader_periods.get(named.name, 0.0)
    if seen.lag_facts and min(named.unrun_seconds, seen.lag_seconds) > too_long:
        forget = f"manage.py streams forget {quote(named.name)}"
        text = f"{since}, and it is {_behind(seen)}. Start it: {command}. If it is not wanted any more: {forget}."
        return Verdict(ReaderWord.LEFT_BEHIND, Severity.WRONG, text, command, ("forget", "resync"))
    read = f"{_capital(_behind(seen))}" if seen.lag_facts else "It has read everything"
    if not named.has_ended:
        text = f"No sign of life for {duration(named.unrun_seconds)}. {read}. Start it again; it goes on where it was."
        return Verdict(ReaderWord.GONE, Severity.WARNING, text)
    if named.is_wanted and named.unrun_seconds > too_long:
        text = f"REPLSITE_READERS names it. {since}. {read}. Start it: {command}."
        return Verdict(ReaderWord.STOPPED, Severity.WARNING, text, command)
    return Verdict(ReaderWord.STOPPED, Severity.NOTE if seen.lag_facts else Severity.FINE, f"{since}. {read}.")


def _start_of(named: NamedReader) -> str:
    return named.command or f"manage.py runhandlers {quote(named.name)}"


def _parked(named: NamedReader) -> Verdict:
    number = counted(named.parked_facts, "fact")
    more = "" if named.parked_exact else "More than "
    command = f"manage.py parked list {quote(named.name)}"
    text = (
        f"{more}{number} put aside, the first {duration(named.parked_seconds)} ago; the last error: "
        f"{_sentence(named.parked_error[:_MOST_OF_ERROR])} See {command}, then retry or drop them."
    )
    if named.retry_waits:
        when = "within seconds" if named.runs else "when its process starts"
        text += f" A retry was asked for and happens {when}."
    return Verdict(ReaderWord.PARKING, Severity.WARNING, text, command, ("retry", "parked"))


def judge_missing_reader(name: str) -> Verdict:
    """Returns the status of a reader that REPLSITE_READERS names, and of which this database has no row."""
    text = (
        f"REPLSITE_READERS names it, but there is no trace of {name} within a day. Start it; it goes on where it was."
    )
    return Verdict(ReaderWord.NEVER_SEEN, Severity.WARNING, text)


def _reader_without_lag(seen: ReaderOnStream, limits: Limits) -> Verdict:
    quiet = seen.stream_quiet_seconds
    if seen.lag_facts == 0 and (quiet is None or quiet > limits.idle_after_seconds):
        return Verdict(ReaderWord.IDLE, Severity.FINE, "Has read everything; the stream is quiet.")
    return Verdict(ReaderWord.CURRENT, Severity.FINE, "Keeps up.")


def _reader_with_lag(seen: ReaderOnStream, limits: Limits) -> Verdict:
    behind = _behind(seen)
    if seen.waits_for:
        text = f"Has read everything up to the linear position; {seen.waits_for} holds the stream back. {_capital(behind)}."
        return Verdict(ReaderWord.WAITING, Severity.NOTE, text)
    unmoved = seen.unmoved_seconds or 0.0
    if unmoved >= limits.stuck_after_seconds <= seen.lag_seconds:
        cure = "It lives but does not move: look at its log, then restart it or disconnect it."
        text = f"{_capital(behind)}, position unchanged for {duration(unmoved)}. {cure}"
        return Verdict(ReaderWord.STUCK, Severity.WRONG, text, actions=("disconnect",) if seen.is_connection else ())
    change = seen.lag_change_per_second or 0.0
    above_floor = seen.lag_facts >= limits.falling_floor_facts and seen.lag_seconds >= limits.falling_floor_seconds
    if change > 0 and above_floor:
        text = (
            f"{_capital(behind)}, and {change:,.0f} facts/s more. It handles facts more slowly than they are written."
        )
        return Verdict(ReaderWord.FALLING_BEHIND, Severity.WARNING, text)
    eta = f"; current in about {duration(seen.lag_facts / -change)}" if change < 0 else ""
    return Verdict(ReaderWord.CATCHING_UP, Severity.NOTE, f"{_capital(behind)}{eta}.")


def _behind(seen: ReaderOnStream) -> str:
    about = "" if seen.lag_exact else "about "
    return f"{about}{counted(seen.lag_facts, 'fact')}, {duration(seen.lag_seconds)} behind"


def judge_job(seen: JobSeen) -> Verdict:
    """Returns the status of a job."""
    if seen.killed:
        command = "manage.py runjobs"
        cure = f"A queued one is begun again by {command}, others by their command."
        text = f"Its process was killed; what it did stays. {cure}"
        return Verdict(JobWord.KILLED, Severity.WARNING, text, command, ("resume",))
    if seen.state == JobWord.QUEUED:
        return _queued_job(seen)
    if seen.state == JobWord.FAILED:
        reason = seen.error.strip().partition("\n")[0][:_MOST_OF_ERROR]
        return Verdict(
            JobWord.FAILED, Severity.WARNING, reason or "No reason given; look at its log.", actions=("resume",)
        )
    if seen.state == JobWord.DONE and seen.differences:
        return _differing_job(seen)
    said = {
        JobWord.RUNNING: f"{duration(seen.seconds_left)} left in this stage." if seen.seconds_left is not None else "",
        JobWord.CANCELLED: "What it had done stays.",
    }
    word = JobWord(seen.state)
    ends = word == JobWord.RUNNING and seen.asked_to_end
    return Verdict(word, Severity.FINE, "Stops at its next step." if ends else said.get(word, ""))


def _differing_job(seen: JobSeen) -> Verdict:
    text = f"{_capital(counted(seen.differences, 'difference'))} in {seen.where}"
    if not seen.repair:
        text += " cannot be recomputed and are left. Its page lists them."
        return Verdict(JobWord.WITH_DIFFERENCES, Severity.WARNING, text)
    text += f". Repair them: {seen.repair}."
    return Verdict(JobWord.WITH_DIFFERENCES, Severity.WARNING, text, seen.repair, ("repair",))


def _queued_job(seen: JobSeen) -> Verdict:
    waits = seen.waits_seconds or 0.0
    if seen.is_served or waits <= JOB_WAITS_SECONDS:
        return Verdict(JobWord.QUEUED, Severity.NOTE, "Waits for its turn.")
    command = "manage.py runjobs"
    text = f"It has not been started for {duration(waits)}. Start {command}."
    return Verdict(JobWord.WAITING, Severity.WARNING, text, command)


def judge_sequence(found: FoundSequence | None, stored: int, in_tables: int) -> Verdict | None:
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


def judge_tables(tables: Sequence[str]) -> Verdict:
    """Returns the verdict on tables whose next rows would get numbers that are taken. There is at least one."""
    command = "manage.py check_streams --repair"
    more = f", and {len(tables) - 1} more tables" if len(tables) > 1 else ""
    text = f"The sequence of its numbers is below those of its rows{more}: new rows are refused. Run: {command}."
    return Verdict("sequence behind", Severity.WRONG, text, command, ("positions",))


def judge_disk(folder: str, free_bytes: int, wanted_bytes: int) -> Verdict | None:
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


def judge_health(problems: Iterable[Problem], summary: str) -> Health:
    """Returns the state of the whole site. ``summary`` counts the site's parts, and is shown if all is well."""
    found = sorted(problems, key=lambda problem: -problem.verdict.severity)
    if not found or found[0].verdict.severity < Severity.WARNING:
        return Health(HealthWord.WELL, f"All is well: {summary}.", tuple(found))
    first = found[0]
    word = HealthWord.WRONG if first.verdict.severity == Severity.WRONG else HealthWord.LOOK
    others = sum(problem.verdict.severity >= Severity.WARNING for problem in found) - 1
    more = f" ({others} more below)" if others else ""
    return Health(word, f"{first.subject} is {first.verdict.word}: {first.verdict.sentence}{more}", tuple(found))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
