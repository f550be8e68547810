"""The arguments of jobs, as their kinds declare them (pure): what the form of a kind is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = [
    "ARCHIVE_FIELDS",
    "CUT_FIELDS",
    "DELETE_LOCAL_FIELD",
    "ROOMS_FIELD",
    "ROOM_FIELD",
    "SPARK_FIELDS",
    "Entry",
    "JobField",
]


class Entry(Enum):
    """How an argument is entered, and so what it becomes."""

    TEXT = auto()
    LINES = auto()
    """A list of texts, one a line."""
    NUMBER = auto()
    FLAG = auto()
    CHOICE = auto()
    CHOICES = auto()
    MOMENT = auto()
    """Milliseconds since 1970, entered as date and time in UTC."""
    DAY = auto()
    WHETHER = auto()
    """True, false, or left to the job."""


@dataclass(frozen=True, slots=True)
class JobField:
    """One argument of a kind."""

    name: str
    entry: Entry
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()


ROOM_FIELD = JobField("room", Entry.TEXT, "its ID, such as !abc:example.org", required=True)
ROOMS_FIELD = JobField("rooms", Entry.LINES, "their IDs, one a line; none: all rooms")
CUT_FIELDS = (
    JobField("before", Entry.TEXT, "the ID of an event: what lies below it; one of the three"),
    JobField("before_time", Entry.MOMENT, "a time in UTC: what is older"),
    JobField("before_token", Entry.TEXT, "a token of the room's timeline: what lies below it"),
)
DELETE_LOCAL_FIELD = JobField("delete_local", Entry.FLAG, "messages of this server go, too")
SPARK_FIELDS = (
    JobField("spark", Entry.WHETHER, "whether Spark writes the archive"),
    JobField("master", Entry.TEXT, "URL of a Spark master for it; none: the site's"),
)
ARCHIVE_FIELDS = (
    JobField("archive", Entry.TEXT, "folder of an archive that is written first; none: what is deleted is gone"),
    *SPARK_FIELDS,
)
