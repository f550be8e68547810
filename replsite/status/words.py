"""The status words, each with the rule by which it is given and its severity (pure).

``docs/reference/status-words.md`` has the same tables; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Self


class Severity(IntEnum):
    """The importance of a status. Pages and commands show the highest first."""

    FINE = 0
    NOTE = 1
    WARNING = 2
    WRONG = 3


class _Word(StrEnum):
    """A status word with the rule by which it is given, in which backticks enclose code, and its severity."""

    rule: str
    severity: str

    def __new__(cls, word: str, rule: str = "", severity: str = "") -> Self:
        """Makes the word a text that is equal to itself without rule and severity."""
        made = str.__new__(cls, word)
        made._value_, made.rule, made.severity = str(word), rule, severity
        return made


class WriterWord(_Word):
    """Status words of a writer on a stream."""

    WRITING = "writing", "its last fact is younger than 10 s, or an append that may be its own is open", "fine"
    IDLE = "idle", "nothing to write", "fine"
    BLOCKED = (
        "blocked",
        "an append that may be its own is open for longer than `REPLSITE_BLOCKED_AFTER_SECONDS`; the sentence"
        " names the session, and what it waits for (`streams abort` ends it)",
        "wrong",
    )
    RETIRED = "retired", "wrote nothing for an hour; its next fact makes it active again", "fine"
    RECORDED = (
        "recorded",
        "a writer of a foreign server (`follow --record`), recorded now; the sentence names ranges of missed "
        "facts (note)",
        "fine",
    )
    RECORDING_STOPPED = (
        "recording stopped",
        "the recorder of that server was ended (note, listed for a day), or an error or a kill ended it: no sign of "
        "life for three periods (listed until it runs again, or `streams forget RECORD`)",
        "warning",
    )


class HoldWord(_Word):
    """Status words of an open append, and of a stream that it blocks."""

    OPEN = (
        "open",
        "a transaction has appended, or locked stored positions, and has not ended; linear readers wait for it. After "
        "`REPLSITE_BLOCKED_AFTER_SECONDS` it and its stream are `blocked`",
        "fine",
    )
    BLOCKED = WriterWord.BLOCKED, WriterWord.BLOCKED.rule, WriterWord.BLOCKED.severity


class ExpectedWord(_Word):
    """Status words of a writer that REPLSITE_EXPECTED_WRITERS requires."""

    THERE = "there", "a writer of that name or pattern wrote within the last hour", "fine"
    MISSING = "missing", "none did, or none ever wrote; the sentence tells when its last fact was", "wrong"
    TOO_FEW = (
        "too few facts",
        "there, but all of that name wrote fewer facts in the last hour than expected; only known to a "
        "process that has run for an hour, so not to `manage.py streams`",
        "wrong",
    )


class ReaderWord(_Word):
    """Status words of a reader on a stream."""

    CURRENT = "current", "nothing unread that is older than 1 s", "fine"
    IDLE = "idle", "has read everything, and the stream is quiet for longer than 60 s", "fine"
    CATCHING_UP = (
        "catching up",
        "something unread, and neither of the next two; with the time until it is current, when the lag falls",
        "note",
    )
    FALLING_BEHIND = "falling behind", "its lag grows, and is at least 100 facts and 5 s", "warning"
    WAITING = (
        "waiting",
        "a linear reader that has read all up to the linear position, which the named session holds back; the"
        " alarm is the stream's",
        "note",
    )
    STUCK = (
        "stuck",
        "alive, but its position did not change for `REPLSITE_STUCK_AFTER_SECONDS`, and something is unread "
        "for as long",
        "wrong",
    )
    GONE = (
        "gone",
        "no sign of life for three periods (warning), or closed, with the reason (fine); listed for five "
        "minutes (connections), a day (others), or until forgotten (named readers, Spark queries)",
        "warning",
    )
    WENT_BACK = (
        "went back",
        "its position for a writer became lower within the last minute: it handles facts again",
        "warning",
    )
    NEVER_SEEN = "never seen", "`REPLSITE_READERS` names it, but it was never seen", "warning"
    FAILED = (
        "failed",
        "a named reader: an error, shown in the sentence, ended it, and its cursor has not moved since; or "
        "its cursor is above the stream's sequence",
        "wrong",
    )
    LEFT_BEHIND = (
        "left behind",
        "a named reader: no process runs it, and facts are unread, both for longer than "
        "`REPLSITE_LEFT_BEHIND_AFTER_SECONDS`, and its period in `REPLSITE_READER_PERIODS`; or unread facts were "
        "trimmed",
        "wrong",
    )
    STOPPED = (
        "stopped",
        "a named reader that ended in order; facts came since (note), `REPLSITE_READERS` names it (warning)",
        "fine",
    )
    PARKING = (
        "parking",
        "a named reader with dead letters, and no worse problem; its buttons or `manage.py parked` list, "
        "retry and drop them",
        "warning",
    )


class JobWord(_Word):
    """Status words of a job."""

    QUEUED = "queued", "waits for its turn", "note"
    WAITING = (
        "waiting",
        "not started for 60 s, while no other queued job is running: `manage.py runjobs` is missing",
        "warning",
    )
    RUNNING = "running", "a process works on it; with the time left", "fine"
    KILLED = "killed", "its row says running, and no process holds its lock", "warning"
    DONE = "done", "over, as it should be; listed for a day", "fine"
    WITH_DIFFERENCES = (
        "done with differences",
        "a resync that is over found differences, and no later one has compared these rooms; `Repair it` "
        "carries a dry run out. Without that button they cannot be recomputed. Listed for a day",
        "warning",
    )
    FAILED = "failed", "over, with the reason; listed for a day", "warning"
    CANCELLED = "cancelled", "somebody ended it", "fine"


class HealthWord(_Word):
    """Status words of the whole site."""

    WELL = "well", "no warning and nothing wrong"
    LOOK = "look", "a warning"
    WRONG = "wrong", "something is wrong"


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

    @property
    def words(self) -> str:
        """Returns what is the matter, such as *Job 3 (archive) failed* and *Stream events is blocked*."""
        return f"{self.subject} {'' if self.verdict.word == 'failed' else 'is '}{self.verdict.word}"


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the whole site: a word, the worst status with its reason, and all problems, worst first."""

    word: HealthWord
    sentence: str
    problems: tuple[Problem, ...] = field(default=())


def anchor(kind: str, word: str) -> str:
    """Returns the HTML anchor of a word on the page of status words. ``kind`` is writer, reader, job or site."""
    return f"{kind}-{word.replace(' ', '-')}"


#: (title, kind, words). Words of expected writers and open appends are listed with those of writers, so they have that kind.
MEANINGS: tuple[tuple[str, str, Sequence[_Word]], ...] = (
    ("A writer on a stream", "writer", [*WriterWord]),
    ("An open append", "writer", [HoldWord.OPEN]),
    ("An expected writer", "writer", [*ExpectedWord]),
    ("A reader on a stream", "reader", [*ReaderWord]),
    ("A job", "job", [*JobWord]),
    ("The whole", "site", [*HealthWord]),
)
