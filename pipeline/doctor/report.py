"""What an examination of a Synapse server's database found (pure). The terminal, JSON and the page show the same report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "REASONS",
    "Checked",
    "Finding",
    "Groups",
    "PiledUp",
    "Reason",
    "Remedy",
    "Report",
    "RoomResult",
    "RoomSize",
    "StreamState",
    "TableSize",
    "quoted",
]

MOST_SHOWN = 100
"""The most findings of one reason that a report holds. The others are counted."""


class Reason(StrEnum):
    """Why a finding is one, in a word, the worst first. ``REASONS`` explains each."""

    SEQUENCE_BEHIND_TABLE = "sequence-behind-table"
    SEQUENCE_BEHIND_POSITION = "sequence-behind-position"
    STATE_OVERDUE = "state-overdue"
    EXTREMITIES_PILE_UP = "extremities-pile-up"
    GROUPS_UNREFERENCED = "groups-unreferenced"
    GROUPS_OF_DELETED_ROOMS = "groups-of-deleted-rooms"
    EVENT_WITHOUT_JSON = "event-without-json"
    GROUP_MISSING = "group-missing"
    GROUP_BROKEN = "group-broken"
    ENTRY_UNKNOWN = "entry-unknown"
    ENTRY_MISPLACED = "entry-misplaced"
    STATE_DIFFERS = "state-differs"
    CURRENT_STATE_DIFFERS = "current-state-differs"
    MEMBERSHIP_DIFFERS = "membership-differs"
    NO_EXTREMITY = "no-extremity"
    EXTREMITY_MISSING = "extremity-missing"
    EXTREMITY_REFERRED_TO = "extremity-referred-to"
    EXTREMITY_NOT_ACCEPTED = "extremity-not-accepted"
    EXTREMITY_UNKNOWN = "extremity-unknown"
    ROOM_UNREADABLE = "room-unreadable"


REASONS: Mapping[Reason, str] = {
    Reason.SEQUENCE_BEHIND_TABLE: "a sequence would give out IDs that rows have already; the server does not start",
    Reason.SEQUENCE_BEHIND_POSITION: "a sequence is below a stored position; the server does not start",
    Reason.STATE_OVERDUE: "a room waits for its state for more than a day; until it has come, the room is not checked",
    Reason.EXTREMITIES_PILE_UP: "each new event has to resolve the states of many forward extremities",
    Reason.GROUPS_UNREFERENCED: "most of the stored state is of groups that no event needs",
    Reason.GROUPS_OF_DELETED_ROOMS: "state groups of rooms that are not there any more",
    Reason.EVENT_WITHOUT_JSON: "an event without a row in event_json",
    Reason.GROUP_MISSING: "an event in the graph has no state group, or one that is not stored",
    Reason.GROUP_BROKEN: "a state group builds on one that is not stored, or on itself",
    Reason.ENTRY_UNKNOWN: "a state group names an event that the room does not have",
    Reason.ENTRY_MISPLACED: "a state group has an event at a type or state key that is not the event's",
    Reason.STATE_DIFFERS: "the state after an event does not follow from the states after its prev events",
    Reason.CURRENT_STATE_DIFFERS: "the current state is not the state at the room's forward extremities",
    Reason.MEMBERSHIP_DIFFERS: "the membership beside an entry of the current state is not that of its event",
    Reason.NO_EXTREMITY: "a room with accepted events has no forward extremity, so nothing can be sent",
    Reason.EXTREMITY_MISSING: "no accepted event refers to the event, and it is no forward extremity",
    Reason.EXTREMITY_REFERRED_TO: "a forward extremity to which an accepted event refers",
    Reason.EXTREMITY_NOT_ACCEPTED: "a forward extremity that was rejected or soft-failed, or is an outlier",
    Reason.EXTREMITY_UNKNOWN: "a forward extremity that the room does not have as an event",
    Reason.ROOM_UNREADABLE: "the rows of the room fit each other so little that it cannot be computed",
}
"""The meaning of each reason."""


def quoted(text: str) -> str:
    """Returns a text as a literal of SQL. Other servers choose IDs, and operators run the statements of remedies."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: what, where, the rule that says so, and what to do.

    ``stored`` and ``computed`` are the server's own value and the one that it should have.
    """

    reason: Reason
    where: str
    text: str
    fix: str = ""
    event_id: str | None = None
    key: str | None = None
    stored: str | None = None
    computed: str | None = None
    rule: str = ""


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table on the disk, with its indexes. ``rows`` is the estimate of PostgreSQL's statistics."""

    table: str
    bytes: int
    rows: int
    dead_rows: int
    row_bytes: int
    """The size of its rows alone."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """The sequence of a stream, or of other IDs, beside the highest ID in its tables and the highest stored position."""

    stream: str
    sequence: str
    value: int | None
    in_tables: int | None
    stored: int | None
    writers: Mapping[str, int]
    """Name of a writer -> its stored position."""
    verdict: str
    fix: str = ""


@dataclass(slots=True)
class RoomSize:
    """What a room takes. Bytes are its share of the tables on the disk, with their indexes."""

    room_id: str
    name: str = ""
    members: int | None = None
    """Joined members, of all servers."""
    has_local_users: bool | None = None
    """True if users of this server are joined or invited, or knock. None: not known."""
    events: int = 0
    event_bytes: int = 0
    json_bytes: int = 0
    state_rows: int = 0
    state_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.event_bytes + self.json_bytes + self.state_bytes


@dataclass(frozen=True, slots=True)
class Groups:
    """State groups. ``rows`` are those of state_groups_state."""

    groups: int
    rows: int
    events: int
    unreferenced: int
    unreferenced_rows: int
    row_bytes: float
    """What a row takes on the disk, with indexes."""
    is_estimated: bool

    @property
    def rows_per_event(self) -> float:
        return self.rows / self.events if self.events else 0.0


@dataclass(frozen=True, slots=True)
class PiledUp:
    """A room with many forward extremities."""

    room_id: str
    extremities: int


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that frees space: what, how many bytes about, and how it is done."""

    subject: str
    bytes: int
    how: str
    is_upper_bound: bool = False


@dataclass(slots=True)
class RoomResult:
    """What the examination of one room found. ``more`` counts findings beyond those listed, by reason.

    ``rows`` are those of the state groups that events need, and ``rows_needed`` the rows with which this program would
    store the same states. ``failure`` says why the room could not be examined to its end.
    """

    room_id: str
    events: int = 0
    groups: int = 0
    rows: int = 0
    rows_needed: int = 0
    given_states: int = 0
    remarks: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    failure: str = ""

    def add(self, finding: Finding) -> None:
        if len(self.findings) < MOST_SHOWN:
            self.findings.append(finding)
        else:
            self.more[finding.reason] = self.more.get(finding.reason, 0) + 1

    def remark(self, subject: str, times: int = 1) -> None:
        """Counts something that a healthy server shows, too."""
        self.remarks[subject] = self.remarks.get(subject, 0) + times


@dataclass(slots=True)
class Checked:
    """The rooms that were computed again. ``given_states`` counts states that cannot be computed, as other servers gave them."""

    rooms: int = 0
    events: int = 0
    groups: int = 0
    rows: int = 0
    """Rows of the state groups that events need."""
    rows_needed: int = 0
    """Rows with which this program would store the same states."""
    given_states: int = 0
    seconds: float = 0.0
    remarks: dict[str, int] = field(default_factory=dict)
    """What a healthy server shows and cannot be decided -> how often."""

    def add(self, room: RoomResult) -> None:
        self.rooms += 1
        self.events += room.events
        self.groups += room.groups
        self.rows += room.rows
        self.rows_needed += room.rows_needed
        self.given_states += room.given_states
        for remark, times in room.remarks.items():
            self.remarks[remark] = self.remarks.get(remark, 0) + times


@dataclass(slots=True)
class Report:
    """The whole report."""

    database: str
    schema: int
    snapshot_at: str
    """Time of the snapshot, ISO 8601."""
    version: str = ""
    findings: list[Finding] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    """Reason -> number of findings beyond those listed."""
    streams: Sequence[StreamState] = ()
    tables: Sequence[TableSize] = ()
    rooms_total: int = 0
    rooms: Sequence[RoomSize] = ()
    """The largest rooms."""
    empty_rooms: int | None = None
    """Rooms in which no user of this server is. None: not known."""
    sampled: Mapping[str, float] = field(default_factory=dict)
    """Table -> the part of its pages that was read, for tables that were not read as a whole."""
    groups: Groups | None = None
    piled_up: Sequence[PiledUp] = ()
    remedies: Sequence[Remedy] = ()
    background_updates: Sequence[str] = ()
    checked: Checked | None = None
    """None if no room was computed again."""
    left_out: list[str] = field(default_factory=list)
    """What could not be examined, with the reason."""
    seconds: float = 0.0

    def add(self, finding: Finding) -> None:
        if sum(found.reason == finding.reason for found in self.findings) < MOST_SHOWN:
            self.findings.append(finding)
        else:
            self.more[finding.reason] = self.more.get(finding.reason, 0) + 1

    def add_room(self, room: RoomResult) -> None:
        """Adds the result of a room to ``checked`` and to the findings."""
        if self.checked is None:
            self.checked = Checked()
        self.checked.add(room)
        if room.failure:
            # No part that was left out: who reads that nothing is wrong would believe it of this room, too.
            self.add(
                Finding(
                    Reason.ROOM_UNREADABLE,
                    room.room_id,
                    f"The rest of the room {room.room_id} could not be examined: {room.failure}",
                    "Look at the event or row that the message names. If the server shows the room well, report the message.",
                    rule="the rows of a room refer to rows that are there",
                )
            )
        for finding in room.findings:
            self.add(finding)
        for reason, times in room.more.items():
            self.more[reason] = self.more.get(reason, 0) + times

    def sort(self) -> None:
        """Sorts the findings by reason, the worst first. Tasks find them in any order."""
        worst = list(Reason)
        self.findings.sort(key=lambda f: (worst.index(f.reason), f.where, f.event_id or "", f.key or ""))

    @property
    def found(self) -> int:
        """The number of findings."""
        return len(self.findings) + sum(self.more.values())

    @property
    def is_well(self) -> bool:
        return not self.findings

    def headline(self) -> str:
        if self.is_well:
            return "Nothing is wrong." + (" Some parts could not be examined." if self.left_out else "")
        return f"{self.found:,} {'thing is' if self.found == 1 else 'things are'} wrong."

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["well"], found["found"] = self.is_well, self.found
        for room, row in zip(self.rooms, found["rooms"], strict=True):
            row["bytes"] = room.bytes
        if self.groups is not None:
            found["groups"]["rows_per_event"] = round(self.groups.rows_per_event, 2)
        return found
