"""The status words, their severity, and the rule by which each is given (pure).

``docs/reference/status-words.md`` has the same tables; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

__all__ = [
    "MEANINGS",
    "ExpectedWord",
    "Health",
    "HealthWord",
    "HoldWord",
    "JobWord",
    "Meaning",
    "Problem",
    "ReaderWord",
    "Severity",
    "Verdict",
    "WriterWord",
    "anchor",
]


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


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a status word. In ``rule``, backticks enclose code."""

    word: str
    rule: str
    severity: str


def anchor(kind: str, word: str) -> str:
    """Returns the HTML anchor of a word on the page of status words. ``kind`` is writer, reader, job or site."""
    return f"{kind}-{word.replace(' ', '-')}"


#: (title, kind, meanings). Words of expected writers and open appends are listed with those of writers, so they have that kind.
MEANINGS: tuple[tuple[str, str, tuple[Meaning, ...]], ...] = (
    (
        "A writer on a stream",
        "writer",
        (
            Meaning("writing", "its last fact is younger than 10 s, or an append that may be its own is open", "fine"),
            Meaning("idle", "nothing to write", "fine"),
            Meaning(
                "blocked",
                "an append that may be its own is open for longer than `REPLSITE_BLOCKED_AFTER_SECONDS`; the sentence "
                "names the session, and what it waits for (`streams abort` ends it)",
                "wrong",
            ),
            Meaning("retired", "wrote nothing for an hour; its next fact makes it active again", "fine"),
            Meaning(
                "recorded",
                "a writer of a foreign server (`follow --record`), recorded now; the sentence names ranges of "
                "missed facts (note)",
                "fine",
            ),
            Meaning(
                "recording stopped",
                "the recorder of that server was ended (note), or shows no sign of life for three periods",
                "warning",
            ),
        ),
    ),
    (
        "An open append",
        "writer",
        (
            Meaning(
                "open",
                "a transaction has appended and has not ended; linear readers wait for it. After "
                "`REPLSITE_BLOCKED_AFTER_SECONDS` it and its stream are `blocked`",
                "fine",
            ),
        ),
    ),
    (
        "An expected writer",
        "writer",
        (
            Meaning("there", "a writer of that name or pattern wrote within the last hour", "fine"),
            Meaning(
                "missing",
                "none did, or none ever wrote; the sentence tells when its last fact was",
                "wrong",
            ),
            Meaning(
                "too few facts",
                "there, but all of that name wrote fewer facts in the last hour than expected; only known to a "
                "process that has run for an hour, so not to `manage.py streams`",
                "wrong",
            ),
        ),
    ),
    (
        "A reader on a stream",
        "reader",
        (
            Meaning("current", "nothing unread that is older than 1 s", "fine"),
            Meaning("idle", "has read everything, and the stream is quiet for longer than 60 s", "fine"),
            Meaning(
                "catching up",
                "something unread, and neither of the next two; with the time until it is current, when the lag falls",
                "note",
            ),
            Meaning("falling behind", "its lag grows, and is at least 100 facts and 5 s", "warning"),
            Meaning(
                "waiting",
                "a linear reader that has read all up to the linear position, which the named session holds back; "
                "the alarm is the stream's",
                "note",
            ),
            Meaning(
                "stuck",
                "alive, but its position did not change for `REPLSITE_STUCK_AFTER_SECONDS`, and something is "
                "unread for as long",
                "wrong",
            ),
            Meaning(
                "gone",
                "no sign of life for three periods (warning), or closed, with the reason (fine); listed for five "
                "minutes (connections), a day (others), 30 days (Spark queries), or until forgotten (named readers)",
                "warning",
            ),
            Meaning(
                "went back",
                "its position for a writer became lower within the last minute: it handles facts again",
                "warning",
            ),
            Meaning("never seen", "`REPLSITE_READERS` names it, but it was never seen", "warning"),
            Meaning(
                "failed",
                "a named reader: an error, shown in the sentence, ended it, and its cursor has not moved since; "
                "or its cursor is above the stream's sequence",
                "wrong",
            ),
            Meaning(
                "left behind",
                "a named reader: no process runs it, and facts are unread, both for longer than "
                "`REPLSITE_LEFT_BEHIND_AFTER_SECONDS`, and its period in `REPLSITE_READER_PERIODS`",
                "wrong",
            ),
            Meaning(
                "stopped",
                "a named reader that ended in order; facts came since (note), `REPLSITE_READERS` names it (warning)",
                "fine",
            ),
            Meaning(
                "parking",
                "a named reader with dead letters, and no worse problem; its buttons or `manage.py parked` "
                "list, retry and drop them",
                "warning",
            ),
        ),
    ),
    (
        "A job",
        "job",
        (
            Meaning("queued", "waits for its turn", "note"),
            Meaning(
                "waiting",
                "not started for 60 s, while no other queued job is running: `manage.py runjobs` is missing",
                "warning",
            ),
            Meaning("running", "a process works on it; with the time left", "fine"),
            Meaning("killed", "its row says running, and no process holds its lock", "warning"),
            Meaning("done", "over, as it should be; listed for a day", "fine"),
            Meaning(
                "done with differences",
                "a resync that is over found differences, and no later one has compared these rooms; `Repair it` "
                "carries a dry run out. Without that button they cannot be recomputed. Listed for a day",
                "warning",
            ),
            Meaning("failed", "over, with the reason; listed for a day", "warning"),
            Meaning("cancelled", "somebody ended it", "fine"),
        ),
    ),
    (
        "The whole",
        "site",
        (
            Meaning("well", "no warning and nothing wrong", ""),
            Meaning("look", "a warning", ""),
            Meaning("wrong", "something is wrong", ""),
        ),
    ),
)
