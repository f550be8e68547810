"""Lists the differences between the stored rows of a room and the computed rows, with the values of both (pure).

Each difference belongs to a subject. A subject is the argument of ``manage.py resync`` that repairs the difference. A
report lists a bounded number of differences, but its totals count all of them. A *doubt* is a question that the stored
rows cannot answer. A doubt is not counted as a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from events.format.parsing import RULED_TYPES, ParsedEvent
from events.integrity.expected_rows import Columns, Computed, StoredEvent, StoredRows, compute, stored_before
from events.room.graph import is_accepted
from events.visibility.ranges import VisibilityRow
from events.visibility.same_ranges import show_the_same

SUBJECTS = ("state", "extremities", "visibility")
EVERYTHING = "rooms"
"""All subjects at once."""
_MOST_LISTED = 200
_MOST_ENTRIES = 20
COLUMNS_OF_THE_EVENT = [name for name in Columns._fields if name not in ("edges", "auth")]


@dataclass(frozen=True, slots=True)
class Difference:
    """A stored value that is wrong. ``mendable`` is false if the right value cannot be computed."""

    subject: str
    table: str
    key: str
    column: str
    stored: Any
    computed: Any
    mendable: bool = True

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class RoomReport:
    """The report on one room. Its lists are bounded. ``totals`` counts all differences, and ``doubtful`` all doubts."""

    room_id: str
    events: int = 0
    differences: list[Difference] = field(default_factory=list)
    totals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(subject, table) -> number of differences, also those that are not listed."""
    doubts: list[str] = field(default_factory=list)
    doubtful: int = 0

    @property
    def clean(self) -> bool:
        return not self.totals

    def of(self, subject: str) -> int:
        """Returns the number of differences of a subject, including those that are not listed."""
        return sum(count for (found, _), count in self.totals.items() if includes_subject(subject, found))

    def add(self, difference: Difference) -> None:
        self.totals[difference.subject, difference.table] += 1
        if len(self.differences) < _MOST_LISTED:
            self.differences.append(difference)

    def doubt(self, text: str) -> None:
        self.doubtful += 1
        if len(self.doubts) < _MOST_LISTED:
            self.doubts.append(text)

    def as_json(self) -> dict[str, Any]:
        return {
            "room_id": self.room_id,
            "clean": self.clean,
            "events": self.events,
            "total": sum(self.totals.values()),
            "totals": {f"{subject} {table}": count for (subject, table), count in sorted(self.totals.items())},
            "differences": [difference.as_json() for difference in self.differences],
            "doubtful": self.doubtful,
            "doubts": self.doubts,
        }


def includes_subject(wanted: str, subject: str) -> bool:
    return wanted in (subject, EVERYTHING)


def compare(rows: StoredRows, computed: Computed | None = None) -> RoomReport:
    """Returns the report on a room's rows. ``computed`` has the right values, if the caller knows them already."""
    should = computed if computed is not None else compute(rows)
    report = RoomReport(rows.room_id, len(rows.events))
    for difference in differences(should):
        report.add(difference)
    # ``_visibility`` reports no difference here: the computed ranges lack what followed from the purged events.
    if _is_cut_off(rows, should) and not _cover_the_same(rows, should, should.ranges):
        report.doubt("who sees what differs, but it follows from events that were purged")
    for event_id in _without_content(rows):
        report.doubt(f"{event_id}: its content decides states and who sees what; these are not compared without it")
    for event_id in should.states.differing:
        report.doubt(f"{event_id}: its state differs from that of its prev events; the event may have come with it")
    return report


def differences(should: Computed) -> Iterator[Difference]:
    """Yields all differences, without a limit.

    States, redactions and ranges are compared only if the content is known of all events that decide them. Otherwise a
    repair could, for instance, show a room's closed history to everybody, because the setting that closes it is
    damaged.
    """
    decided = () if _without_content(should.rows) else (_states, _redacted, _current, _visibility)
    for find in (_room, _events, _graph, _extremities, *decided):
        yield from find(should.rows, should)


def _without_content(rows: StoredRows) -> list[str]:
    # of the state events that decide who may do or see what
    return [
        row.event_id
        for row in rows.events
        if row.parsed is None and row.columns is not None and row.is_state and row.columns.type in RULED_TYPES
    ]


def _room(rows: StoredRows, should: Computed) -> Iterator[Difference]:
    table = "events_room"
    if should.create is not None:
        yield from _create(rows, should.create)
    unresolved = should.history.current is None
    # A room without forward extremities has no current state, with the flag (as an import sets it) and without.
    if any(should.history.forward_extremities()) and rows.current_state_unresolved != unresolved:
        stored = rows.current_state_unresolved
        yield Difference("state", table, rows.room_id, "current_state_unresolved", stored, unresolved)


def _create(rows: StoredRows, create: ParsedEvent) -> Iterator[Difference]:
    table = "events_room"
    if not create.outlier and rows.create_event_id != create.event_id:
        yield Difference("state", table, rows.room_id, "create_event_id", rows.create_event_id, create.event_id)
    if rows.create_event_id is not None and rows.creator != create.sender:
        yield Difference("state", table, rows.room_id, "creator", rows.creator, create.sender)


def _events(rows: StoredRows, should: Computed) -> Iterator[Difference]:
    for row in rows.events:
        if row.problem is not None:
            yield Difference("state", "events_eventjson", row.event_id, "json", row.problem, None, mendable=False)
            continue  # without JSON there is nothing to compare the columns with
        event = should.events[row.event_id]
        # The parser sets ``json`` only if it had to redact: the stored content does not fit its hash.
        if event.json:
            problem = "content that does not fit its hash"
            yield Difference("state", "events_eventjson", row.event_id, "json", problem, "the redacted form")
        if event.room_id != rows.room_id:
            yield Difference("state", "events_event", row.event_id, "room_id", rows.room_id, event.room_id, False)
        if row.columns is not None:
            right = Columns.of(event)
            for column in COLUMNS_OF_THE_EVENT:
                if (found := getattr(row.columns, column)) != (computed := getattr(right, column)):
                    yield Difference("state", "events_event", row.event_id, column, found, computed)
        if event.event_id in should.after and row.rejected_reason != event.rejected_reason:
            reason = event.rejected_reason
            yield Difference("state", "events_event", row.event_id, "rejected_reason", row.rejected_reason, reason)


def _graph(rows: StoredRows, should: Computed) -> Iterator[Difference]:
    for row in rows.events:
        if row.columns is None or row.parsed is None:
            continue
        right = Columns.of(should.events[row.event_id])
        stored, computed = set(row.columns.edges), set(right.edges)
        for prev in sorted(stored ^ computed):
            pair = (prev, None) if prev in stored else (None, prev)
            yield Difference("state", "events_eventedge", row.event_id, "prev_event_id", *pair)
        if row.columns.auth != right.auth:
            yield Difference("state", "events_eventauth", row.event_id, "auth_event_ids", row.columns.auth, right.auth)


# --- states -------------------------------------------------------------------------------------------------------


def _states(rows: StoredRows, should: Computed) -> Iterator[Difference]:
    for row in rows.events:
        known = row.event_id in should.after
        unresolved = not row.outlier and not known
        if row.state_unresolved != unresolved:
            yield Difference(
                "state", "events_event", row.event_id, "state_unresolved", row.state_unresolved, unresolved, known
            )
        if not should.state_after_is_right(row):
            yield _other_state(row, should, "after")
        elif not should.state_before_is_right(row):
            yield _other_state(row, should, "before")


def _other_state(row: StoredEvent, should: Computed, side: str) -> Difference:
    group = row.state_group if side == "after" else stored_before(row, should.stored)
    wanted = (should.after if side == "after" else should.before).get(row.event_id)
    if wanted is None or group not in should.stored or group is None:
        found = (
            None if group is None else f"group {group}, which is not stored" if group not in should.stored else group
        )
        known = wanted is not None
        return Difference("state", "events_event", row.event_id, f"state {side}", found, _size(should, wanted), known)
    stored, right = should.stored.state(group), should.states.builder.expand(wanted)
    keys = sorted(key for key in stored.keys() | right.keys() if stored.get(key) != right.get(key))[:_MOST_ENTRIES]
    return Difference(
        "state",
        "state_stategroupdelta",
        row.event_id,
        f"state {side}, group {group}",
        [[*key, stored.get(key)] for key in keys],
        [[*key, right.get(key)] for key in keys],
    )


def _size(should: Computed, group: int | None) -> str | None:
    return None if group is None else f"a state of {len(should.states.builder.expand(group))} entries"


def _current(rows: StoredRows, should: Computed) -> Iterator[Difference]:
    right = {(kind, key): (event_id, found) for kind, key, event_id, found in should.history.current_state()}
    for key in sorted(rows.current.keys() | right.keys()):
        stored, computed = rows.current.get(key), right.get(key)
        if stored != computed:
            yield Difference("state", "events_currentstate", " ".join(key), "event_id, membership", stored, computed)


def _redacted(rows: StoredRows, should: Computed) -> Iterator[Difference]:
    applied = should.redactions()
    for row in rows.events:
        # Of several redactions of one event, the first that came is stored. Their order is unknown here, so each is
        # right.
        right: Sequence[str | None] = applied.get(row.event_id) or [None]
        if row.redacted_by in right or should.undecided(row.redacted_by):
            continue
        if row.outlier and row.redacted_by not in should.events:  # both were purged: a state event stays as an outlier
            continue
        yield Difference("state", "events_event", row.event_id, "redacted_by", row.redacted_by, right[0])


# --- extremities and visibility ---------------------------------------------------------------------------------------


def _extremities(rows: StoredRows, should: Computed) -> Iterator[Difference]:
    both = (
        ("events_forwardextremity", rows.forward, set(should.history.forward_extremities())),
        ("events_backwardextremity", rows.backward, set(should.history.backward_extremities())),
    )
    for table, stored, right in both:
        for event_id in sorted(stored ^ right):
            is_stored, is_right = event_id in stored, event_id in right
            yield Difference(
                "extremities",
                table,
                event_id,
                "event_id",
                event_id if is_stored else None,
                event_id if is_right else None,
            )


def _visibility(rows: StoredRows, should: Computed) -> Iterator[Difference]:
    right = should.known_ranges
    if rows.visibility_unresolved and _may_be_unknown(rows, should):
        right = None
    elif not any(is_accepted(should.events[row.event_id]) for row in rows.events):  # then no user sees anything
        right = []
    if rows.visibility_unresolved != (right is None):
        stored = rows.visibility_unresolved
        yield Difference("visibility", "events_room", rows.room_id, "visibility_unresolved", stored, right is None)
    # Equal visibility may be laid out in different ranges, so what users see is compared, and rows are listed only
    # after that.
    if _cover_the_same(rows, should, right) or _is_cut_off(rows, should):
        return
    stored_rows, right_rows = set(rows.ranges), set(right or [])
    for found in sorted(stored_rows ^ right_rows, key=str):
        stored_span = [found.first, found.last] if found in stored_rows else None
        right_span = [found.first, found.last] if found in right_rows else None
        key = f"{found.user_id or 'everyone'} {found.kind}"
        yield Difference("visibility", "events_eventvisibility", key, "first, last", stored_span, right_span)


def _cover_the_same(rows: StoredRows, should: Computed, right: Sequence[VisibilityRow] | None) -> bool:
    accepted = [row.stream_ordering for row in rows.events if is_accepted(should.events[row.event_id])]
    return show_the_same(rows.ranges, right or [], accepted)


def _is_cut_off(rows: StoredRows, should: Computed) -> bool:
    # Older events were purged, from which the visibility of the oldest stored events followed: it cannot be recomputed.
    first = min((row.stream_ordering for row in rows.events if not row.outlier), default=0)
    has_create_event = should.create is not None and not should.create.outlier
    return not has_create_event and any(found.first < first for found in rows.ranges)


def _may_be_unknown(rows: StoredRows, should: Computed) -> bool:
    # an import could not compute ranges
    return should.history.current is None or any(
        row.event_id not in should.after for row in rows.events if is_accepted(should.events[row.event_id])
    )
