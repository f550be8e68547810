"""Assigns status words to writers, readers and jobs, one rule for each word (pure).

The words are those of ``docs/reference/status-words.md``. A writer without new facts, or a reader of a quiet stream, is
idle and not in error. A writer or reader is called gone if its heartbeat is missing. It is called stuck only if it has
a heartbeat and does not move. The rules take plain numbers. Reading the database and the clock is left to the callers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from shlex import quote

from replsite.humanize import counted, duration

__all__ = [
    "ExpectedSeen",
    "ExpectedWord",
    "Health",
    "HealthWord",
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
    "judge_expected",
    "judge_health",
    "judge_job",
    "judge_missing_reader",
    "judge_reader",
    "judge_recording",
    "judge_sequence",
    "judge_writer",
    "worst",
]


#: If a job is queued for longer, and no job from the queue is running, a ``runjobs`` process must be started.
JOB_WAITS_SECONDS = 60.0
_MOST_OF_ERROR = 300
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
    GONE_WITH_PENDING = "gone with pending"
    GONE = "gone"
    DRAINING = "draining"
    RETIRED = "retired"
    RECORDED = "recorded"
    RECORDING_STOPPED = "recording stopped"


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

    heartbeat_seconds: float = 1.0
    """Period of heartbeats. After three missed heartbeats the writer or reader counts as gone."""
    blocked_after_seconds: float = 10.0
    """A fact that is pending for longer makes its writer *blocked*."""
    writing_within_seconds: float = 10.0
    """A writer whose last fact is younger is writing."""
    idle_after_seconds: float = 60.0
    """A stream without a new fact for this long is quiet."""
    current_within_seconds: float = 1.0
    """Facts younger than this may be on their way. A reader that misses only those is current."""
    stuck_after_seconds: float = 10.0
    """A reader is stuck if it did not move for this long, and facts were unread for this long."""
    falling_floor_facts: int = 100
    falling_floor_seconds: float = 5.0
    """Lag below either floor is never called falling behind, even if it grows."""
    went_back_shown_seconds: float = 60.0
    """For how long a reader that went back is shown as such."""
    missing_after_seconds: float = 30.0
    """An expected writer may be away for so long, for example during a restart. After that it is an error."""
    left_behind_after_seconds: float = 60.0
    """A named reader is left behind if no process ran it, and facts were unread, for longer than this."""

    @property
    def gone_after_seconds(self) -> float:
        """The age of a heartbeat above which its owner counts as gone."""
        return 3 * self.heartbeat_seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status word with its severity and a sentence that gives the reason and what to do."""

    word: str
    severity: Severity
    sentence: str
    command: str = ""
    """The command in the sentence that solves the problem, ready to run. Empty: there is none."""


@dataclass(frozen=True, slots=True)
class WriterOnStream:
    """The figures from which the rules judge a writer on one stream.

    Ages are in seconds; None means that there is no such time.
    """

    stream: str
    writer: str
    retired: bool = False
    heartbeat_age: float | None = 0.0
    pending_facts: int = 0
    oldest_pending_age: float | None = None
    behind_facts: int = 0
    behind_seconds: float = 0.0
    last_write_age: float | None = None
    transaction: int | None = None
    session: str = ""
    """The session that holds the oldest pending transaction open, in words. Empty: none was found."""
    process: str = ""
    """Its process and host, in words."""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedSeen:
    """The figures from which the rules judge an expected writer."""

    writer: str
    """Name or pattern."""
    living: int = 0
    """Number of writers of that name that are alive and have not left the stream."""
    gone_seconds: float | None = None
    """Age of the last heartbeat of a writer of that name. None: there never was one."""
    least_per_hour: float | None = None
    facts_last_hour: int | None = None
    """None: not watched for an hour yet."""


@dataclass(frozen=True, slots=True)
class ReaderOnStream:
    """The figures from which the rules judge a reader on one stream."""

    lag_facts: int = 0
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
    """If a linear reader has read all that it may: the writer that it waits for, with its status. Empty: none."""
    named: NamedReader | None = None
    """None: it has no stored cursor."""


@dataclass(frozen=True, slots=True)
class NamedReader:
    """The further figures from which the rules judge a reader with a stored cursor."""

    name: str
    runs: bool = True
    """True: a living process follows this stream as this reader."""
    unrun_seconds: float = 0.0
    """For how long no process has followed it. 0 while one does."""
    has_ended: bool = False
    """True: its process ended in order. False: it was killed, or hangs."""
    error: str = ""
    """Error that stopped it on this stream. It is kept until its cursor moves again."""
    is_wanted: bool = False
    """True: REPLSITE_READERS names it."""
    parked_facts: int = 0
    parked_exact: bool = True
    parked_seconds: float = 0.0
    """Age of the first dead letter."""
    parked_error: str = ""


@dataclass(frozen=True, slots=True)
class RecordingSeen:
    """The figures from which the rules judge a recorded writer of a foreign server."""

    record: str
    server_name: str
    address: str = ""
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


@dataclass(frozen=True, slots=True)
class Problem:
    """A status that an operator should look at, with the name of its writer, reader, job or stream."""

    subject: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the whole site: a word, the worst status with its reason, and all problems, worst first."""

    word: HealthWord
    sentence: str
    problems: tuple[Problem, ...] = field(default=())


def judge_writer(seen: WriterOnStream, limits: Limits) -> Verdict:
    """Returns the status of a writer on a stream."""
    if seen.retired:
        return Verdict(WriterWord.RETIRED, Severity.FINE, "Left the stream; takes no part in the linear position.")
    if seen.heartbeat_age is None or seen.heartbeat_age > limits.gone_after_seconds:
        return _gone_writer(seen)
    if (seen.oldest_pending_age or 0.0) > limits.blocked_after_seconds:
        return _blocked_writer(seen)
    return _living_writer(seen, limits)


def judge_recording(seen: RecordingSeen, limits: Limits) -> Verdict:
    """Returns the status of a recorded writer of a foreign server."""
    missed = f" {_capital(counted(seen.ranges_missed, 'range'))} of facts missed." if seen.ranges_missed else ""
    if seen.has_ended or seen.heartbeat_age > limits.gone_after_seconds:
        severity = Severity.NOTE if seen.has_ended else Severity.WARNING
        how = "was ended" if seen.has_ended else f"shows no sign of life for {duration(seen.heartbeat_age)}"
        command = f"manage.py follow {quote(seen.address)} --record {quote(seen.record)}"
        text = f"The recorder {how}. Go on: {command}.{missed}"
        return Verdict(WriterWord.RECORDING_STOPPED, severity, text, command)
    severity = Severity.NOTE if seen.ranges_missed else Severity.FINE
    return Verdict(WriterWord.RECORDED, severity, f"A writer of {seen.server_name}, recorded from there.{missed}")


def judge_expected(seen: ExpectedSeen, limits: Limits) -> Verdict:
    """Returns the status of a name or pattern of REPLSITE_EXPECTED_WRITERS."""
    if not seen.living:
        heard = "it never wrote" if seen.gone_seconds is None else f"last heard of {duration(seen.gone_seconds)} ago"
        text = f"REPLSITE_EXPECTED_WRITERS expects it here, and no living process has its name ({heard}). Start it."
        is_new = seen.gone_seconds is not None and seen.gone_seconds <= limits.missing_after_seconds
        return Verdict(ExpectedWord.MISSING, Severity.WARNING if is_new else Severity.WRONG, text)
    written, least = seen.facts_last_hour, seen.least_per_hour
    if least is not None and written is not None and written < least:
        text = (
            f"{_capital(counted(written, 'fact'))} in the last hour; REPLSITE_EXPECTED_WRITERS expects {least:,g}. "
            "Read its log."
        )
        return Verdict(ExpectedWord.TOO_FEW, Severity.WRONG, text)
    return Verdict(ExpectedWord.THERE, Severity.FINE, "As expected.")


def _living_writer(seen: WriterOnStream, limits: Limits) -> Verdict:
    if seen.draining:
        waiting = f"waits for {counted(seen.pending_facts, 'fact')}" if seen.pending_facts else "nothing is pending"
        return Verdict(WriterWord.DRAINING, Severity.NOTE, f"Leaves the stream and reserves nothing new; {waiting}.")
    if seen.last_write_age is not None and seen.last_write_age <= limits.writing_within_seconds:
        return Verdict(WriterWord.WRITING, Severity.FINE, "Writing.")
    if seen.pending_facts:
        waiting = counted(seen.pending_facts, "fact")
        return Verdict(WriterWord.WRITING, Severity.FINE, f"Writing: a transaction with {waiting} is open.")
    return Verdict(WriterWord.IDLE, Severity.FINE, "Alive, with nothing to write.")


def _gone_writer(seen: WriterOnStream) -> Verdict:
    since = "never showed life" if seen.heartbeat_age is None else f"no sign of life for {duration(seen.heartbeat_age)}"
    command = f"manage.py streams retire {quote(seen.writer)}"
    cure = f"If it does not come back: {command}."
    if seen.pending_facts or seen.behind_facts:
        held = f"it holds readers back by {counted(seen.behind_facts, 'fact')}" if seen.behind_facts else ""
        pending = f"{counted(seen.pending_facts, 'fact')} pending" if seen.pending_facts else ""
        what = " and ".join(part for part in (pending, held) if part)
        text = f"{_capital(since)}, {what}. {cure}"
        return Verdict(WriterWord.GONE_WITH_PENDING, Severity.WRONG, text, command)
    text = f"{_capital(since)}; nothing waits for it yet, but the next fact of another writer will. {cure}"
    return Verdict(WriterWord.GONE, Severity.WARNING, text, command)


def _blocked_writer(seen: WriterOnStream) -> Verdict:
    text = f"{counted(seen.pending_facts, 'fact')} pending for {duration(seen.oldest_pending_age or 0.0)}"
    if seen.transaction is not None:
        text += f" in transaction {seen.transaction}"
    text += f" ({seen.session})" if seen.session else ""
    text += f" of {seen.process}" if seen.process else ""
    command = f"manage.py streams abort {quote(seen.writer)}"
    cure = f"Let it commit or roll back, or end it: {command}."
    return Verdict(WriterWord.BLOCKED, Severity.WRONG, f"{text}; linear readers wait for it. {cure}", command)


def judge_reader(seen: ReaderOnStream, limits: Limits) -> Verdict:
    """Returns the status of a reader on a stream. Dead letters are reported only if nothing is worse."""
    verdict = _judge_following(seen, limits)
    if seen.named is not None and seen.named.parked_facts and verdict.severity < Severity.WARNING:
        return _parked(seen.named)
    return verdict


def _judge_following(seen: ReaderOnStream, limits: Limits) -> Verdict:
    """Returns the status of a reader apart from its dead letters."""
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
    """Returns the status of a reader that does not run, or that runs again and has not got beyond its error.

    Returns None for any other reader.
    """
    if (named := seen.named) is not None:
        if named.error and not (named.runs and seen.lag_facts == 0):
            return _failed_reader(seen, named)
        return None if named.runs else _unrun_reader(seen, named, limits)
    if seen.close_reason is not None:
        reason = seen.close_reason or "no reason given"
        return Verdict(ReaderWord.GONE, Severity.FINE, f"Connection closed: {reason}.")
    if seen.heartbeat_age > limits.gone_after_seconds:
        text = f"No sign of life for {duration(seen.heartbeat_age)}. Start it again; it goes on where it was."
        return Verdict(ReaderWord.GONE, Severity.WARNING, text)
    return None


def _failed_reader(seen: ReaderOnStream, named: NamedReader) -> Verdict:
    error = named.error if len(named.error) <= _MOST_OF_ERROR else f"{named.error[:_MOST_OF_ERROR]}..."
    how = "Runs again, and has not got beyond what stopped it" if named.runs else "Ended with an error"
    behind = f" {_capital(_behind(seen))}." if seen.lag_facts else ""
    if _RESYNC in named.error:
        command = f"manage.py resync reader {quote(named.name)}"
        cure = f"If those facts may be missed: {command}."
    else:
        command = f"manage.py runhandlers {quote(named.name)}"
        cure = f"Mend its cause, then start it again: {command}."
    return Verdict(ReaderWord.FAILED, Severity.WRONG, f"{how}: {_sentence(error)}{behind} {cure}", command)


def _unrun_reader(seen: ReaderOnStream, named: NamedReader, limits: Limits) -> Verdict:
    since = f"It has not run for {duration(named.unrun_seconds)}"
    command = f"manage.py runhandlers {quote(named.name)}"
    too_long = limits.left_behind_after_seconds
    if seen.lag_facts and min(named.unrun_seconds, seen.lag_seconds) > too_long:
        forget = f"manage.py streams forget {quote(named.name)}"
        text = f"{since}, and it is {_behind(seen)}. Start it: {command}. If it is not wanted any more: {forget}."
        return Verdict(ReaderWord.LEFT_BEHIND, Severity.WRONG, text, command)
    read = f"{_capital(_behind(seen))}" if seen.lag_facts else "It has read everything"
    if not named.has_ended:
        text = f"No sign of life for {duration(named.unrun_seconds)}. {read}. Start it again; it goes on where it was."
        return Verdict(ReaderWord.GONE, Severity.WARNING, text)
    if named.is_wanted and named.unrun_seconds > too_long:
        text = f"REPLSITE_READERS names it. {since}. {read}. Start it: {command}."
        return Verdict(ReaderWord.STOPPED, Severity.WARNING, text, command)
    return Verdict(ReaderWord.STOPPED, Severity.NOTE if seen.lag_facts else Severity.FINE, f"{since}. {read}.")


def _parked(named: NamedReader) -> Verdict:
    number = counted(named.parked_facts, "fact")
    more = "" if named.parked_exact else "More than "
    command = f"manage.py parked list {quote(named.name)}"
    text = (
        f"{more}{number} put aside, the first {duration(named.parked_seconds)} ago; the last error: "
        f"{_sentence(named.parked_error[:_MOST_OF_ERROR])} See {command}, then retry or drop them."
    )
    return Verdict(ReaderWord.PARKING, Severity.WARNING, text, command)


def judge_missing_reader(name: str) -> Verdict:
    """Returns the status of a reader that REPLSITE_READERS names and of which nothing is stored here."""
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
        text = f"Has read everything up to the linear position; {seen.waits_for}. {_capital(behind)}."
        return Verdict(ReaderWord.WAITING, Severity.NOTE, text)
    unmoved = seen.unmoved_seconds or 0.0
    if unmoved >= limits.stuck_after_seconds <= seen.lag_seconds:
        cure = "It lives but does not move: look at its log, then restart it or disconnect it."
        text = f"{_capital(behind)}, position unchanged for {duration(unmoved)}. {cure}"
        return Verdict(ReaderWord.STUCK, Severity.WRONG, text)
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
    return f"{counted(seen.lag_facts, 'fact')}, {duration(seen.lag_seconds)} behind"


def judge_job(seen: JobSeen) -> Verdict:
    """Returns the status of a job."""
    if seen.killed:
        command = "manage.py runjobs"
        cure = f"A queued one is begun again by {command}, others by their command."
        return Verdict(JobWord.KILLED, Severity.WARNING, f"Its process was killed; what it did stays. {cure}", command)
    if seen.state == JobWord.QUEUED:
        return _queued_job(seen)
    if seen.state == JobWord.FAILED:
        reason = seen.error.strip().partition("\n")[0][:_MOST_OF_ERROR]
        return Verdict(JobWord.FAILED, Severity.WARNING, reason or "No reason given; look at its log.")
    said = {
        JobWord.RUNNING: f"{duration(seen.seconds_left)} left in this stage." if seen.seconds_left is not None else "",
        JobWord.CANCELLED: "What it had done stays.",
    }
    word = JobWord(seen.state)
    ends = word == JobWord.RUNNING and seen.asked_to_end
    return Verdict(word, Severity.FINE, "Stops at its next step." if ends else said.get(word, ""))


def _queued_job(seen: JobSeen) -> Verdict:
    waits = seen.waits_seconds or 0.0
    if seen.is_served or waits <= JOB_WAITS_SECONDS:
        return Verdict(JobWord.QUEUED, Severity.NOTE, "Waits for its turn.")
    command = "manage.py runjobs"
    text = f"It has not been started for {duration(waits)}. Start {command}."
    return Verdict(JobWord.WAITING, Severity.WARNING, text, command)


def judge_sequence(stream: str, sequence_value: int | None, head: int) -> Verdict | None:
    """Returns a verdict if the sequence is below the stored position, and None otherwise.

    Such a sequence would give out IDs for the second time.
    """
    if sequence_value is None or sequence_value >= head:
        return None
    command = "manage.py check_streams --repair"
    text = (
        f"The sequence is at {sequence_value}, below the stored position {head}: the next IDs would be given out again. "
        f"Stop the writers of {stream}, then: {command}."
    )
    return Verdict("sequence behind", Severity.WRONG, text, command)


def worst(verdicts: Iterable[Verdict], otherwise: Verdict) -> Verdict:
    """Returns the most severe verdict, the first of equal ones. Returns ``otherwise`` if there is none."""
    return max(verdicts, key=lambda verdict: verdict.severity, default=otherwise)


def judge_health(problems: Iterable[Problem], summary: str) -> Health:
    """Returns the state of the whole site. ``summary`` counts the site's parts. It is shown if all is well."""
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
