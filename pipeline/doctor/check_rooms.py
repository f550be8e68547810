"""Computes rooms of a Synapse server again, and compares them with the server's own state groups, extremities, current state.

Needs no Django. Each event is checked by itself: the state after it must follow from the states that *the server* has after
its prev events. So a difference is found at the event where it begins, and what builds on it is not reported again. The
rules are those that compute rooms everywhere (``events.history.rows.RoomHistory``, which ``work_out_rooms`` uses).
``_CheckedStates`` compares the state after each event, and goes on with the server's state where the two differ.

A healthy server shows states that cannot be computed: those that other servers gave, because events below were missing.
They are taken as they are, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, cast

import psycopg2

from events.format.parsing import ParsedEvent
from events.history.rows import EVENTS_PER_CHUNK, RoomHistory
from events.integrity.group_digests import Digests
from events.room.state_assignment import RoomStates
from pipeline.doctor.report import Finding, Reason, RoomResult, quoted
from pipeline.doctor.server_rooms import Context, ServerRoom, read_rooms, state_of_group
from pipeline.source.shared_snapshot import few_rows_in_snapshot
from state.groups.deltas import StateKey
from streams.runtime.gc_pause import collector_paused

__all__ = ["check_in_snapshot", "check_rooms"]

_MEMBER = "m.room.member"
_DAY_MS = 86_400_000
_MOST_KEYS = 3
_REBUILD = "Delete the room with purge, and join it again over federation; or restore the rows from a backup."
#: Every row is found by an index. A plan that reads a whole table would read it again for each pack of rooms.
_PLANS = """
SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;
SET LOCAL max_parallel_workers_per_gather = 0
"""
_PLACES = "SELECT event_id, stream_ordering, sender, origin_server_ts FROM events WHERE event_id = ANY (%s)"
_FORMER_OUTLIERS = "SELECT event_id FROM ex_outlier_stream WHERE event_id = ANY (%s)"
#: Notes: what a healthy server shows, too.
PARTIAL = "rooms whose state the server has not got yet"
LEFT = "rooms that all users of the server have left, of which it keeps no current state"
LATE = "states of events that came before their prev events, and were given by other servers"
REJECTED = "states at rejected events that cannot be computed"
INCOMPLETE = "resolved states of which auth events are missing"
PRUNED = "forward extremities of other servers that the server has dropped"
NO_EVENTS = "rooms without events in the graph, such as invites"


def check_in_snapshot(dsn: str, snapshot: str, context: Context, room_ids: Sequence[str]) -> list[RoomResult]:
    """Checks rooms in a Spark task, in the shared snapshot."""
    with few_rows_in_snapshot(dsn, snapshot, "replsite doctor") as cursor:
        return list(check_rooms(cursor.connection, room_ids, context))


def check_rooms(connection: Any, room_ids: Sequence[str], context: Context) -> Iterator[RoomResult]:
    """Yields the result for each room that has events. ``connection`` is in a snapshot."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(_PLANS)
    rooms = read_rooms(connection, room_ids, context)
    with closing(rooms):
        for room in rooms:
            with collector_paused():  # all objects of a room live until it is done
                try:
                    _check(connection, room, context)
                except psycopg2.Error:  # the snapshot is gone
                    raise
                except Exception as error:  # noqa: BLE001 - damage that nobody has foreseen
                    room.result.failure = f"{type(error).__name__} {error}"[:300]
            yield room.result


def _check(connection: Any, room: ServerRoom, context: Context) -> None:
    if room.is_partial:
        room.result.remark(PARTIAL)
        return
    if room.events is None:
        return
    history = RoomHistory(room.events, make_states=partial(_CheckedStates, connection, room, context))
    check = cast("_CheckedStates", history.states)
    room.result.given_states = check.given_states
    room.result.rows_needed = sum(1 for _ in history.group_deltas())
    for finding in check.findings.values():
        room.result.add(finding)
    for remark, times in check.remarks.items():
        room.result.remark(remark, times)
    if len(room.outliers) + len(room.unreadable) >= room.result.events:
        room.result.remark(NO_EVENTS)
        return
    _Ends(connection, room, context, history).check()


class _CheckedStates(RoomStates):
    """Compares the state that was computed after each event with the server's state."""

    def __init__(self, connection: Any, room: ServerRoom, context: Context, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connection, self._room, self._context = connection, room, context
        self._digests = Digests(self.builder)
        self._adopted: dict[int, int] = {}
        self.findings: dict[str, Finding] = {}
        self.remarks: dict[str, int] = {}
        self.given_states = 0

    def _assign(self, event: ParsedEvent) -> None:
        super()._assign(event)
        if event.outlier:
            return
        room, computed = self._room, self.after.get(event.event_id)
        group = room.state_groups.get(event.event_id)
        if group is None or group not in room.digests:
            self._find_no_group(event, group, computed)
            return
        if computed is not None:
            if self._digests.of(computed) == room.digests[group]:
                return
            self._find_difference(event, group, computed)
        else:
            self.given_states += 1
        self.after[event.event_id] = self._adopt(event, group, computed)

    def _find_no_group(self, event: ParsedEvent, group: int | None, computed: int | None) -> None:
        if event.rejected_reason is not None:
            self._remark(REJECTED)
            return
        problem = "has no state group" if group is None else f"has the state group {group}, which is not stored"
        self.findings[event.event_id] = Finding(
            Reason.GROUP_MISSING,
            self._room.room_id,
            f"The event {event.event_id} ({event.type}) {problem}.",
            _REBUILD,
            event_id=event.event_id,
            stored=None if group is None else str(group),
            computed="the state that follows from its prev events" if computed is not None else None,
            rule="each event that is not an outlier has a state group",
        )

    def _find_difference(self, event: ParsedEvent, group: int, computed: int) -> None:
        expected, stored = self.builder.expand(computed), state_of_group(self._connection, group)
        keys = sorted(
            key
            for key in expected.keys() | stored.keys()
            if expected.get(key) != (stored[key][0] if key in stored else None)
        )
        if not keys:
            return
        if event.rejected_reason is not None:
            self._remark(REJECTED)
        elif self._came_before_prevs(event):
            self._remark(LATE)
        elif self._is_incomplete(event, [expected.get(k) for k in keys] + [stored[k][0] for k in keys if k in stored]):
            self._remark(INCOMPLETE)
        else:
            self.findings[event.event_id] = self._difference(event, group, (keys, expected, stored))

    def _difference(
        self,
        event: ParsedEvent,
        group: int,
        found: tuple[Sequence[StateKey], Mapping[StateKey, str], Mapping[StateKey, tuple[str, int]]],
    ) -> Finding:
        keys, expected, stored = found

        def words(key: StateKey) -> str:
            has, row_of = stored.get(key, ("nothing", None))
            where = "" if row_of is None else f" (row of group {row_of})"
            return f"{_name(key)} is {has}{where}, should be {expected.get(key, 'nothing')}"

        more = f", and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
        entries = "entry" if len(keys) == 1 else "entries"
        key = keys[0]
        return Finding(
            Reason.STATE_DIFFERS,
            self._room.room_id,
            f"The state group {group} after the event {event.event_id} ({event.type}) differs in {len(keys)} {entries}: "
            f"{'; '.join(words(k) for k in keys[:_MOST_KEYS])}{more}.",
            _REBUILD,
            event_id=event.event_id,
            key=_name(key),
            stored=stored[key][0] if key in stored else None,
            computed=expected.get(key),
            rule=_rule(self, event),
        )

    def _came_before_prevs(self, event: ParsedEvent) -> bool:
        # The state was then given by another server, and may differ from what the prev events give.
        prevs, ordering_here = list(event.prev_event_ids), event.stream_ordering or 0
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(_PLACES, [prevs])
            for _, ordering, *_ in cursor.fetchall():
                if _may_be_later(ordering, ordering_here):
                    return True
            if "ex_outlier_stream" in self._context.tables:
                cursor.execute(_FORMER_OUTLIERS, [prevs])
                return cursor.fetchone() is not None
        return False

    def _is_incomplete(self, event: ParsedEvent, event_ids: Iterable[str | None]) -> bool:
        if len(event.prev_event_ids) < 2:
            return False
        # An entry that the room does not have is a finding of its own.
        stack, seen = [event_id for event_id in event_ids if event_id in self._room.keys], set[str]()
        self._load([event_id for event_id in stack if event_id is not None])
        while stack:
            event_id = stack.pop()
            if event_id in seen or event_id is None:
                continue
            seen.add(event_id)
            found = self.events.get(event_id)
            if found is None:
                return True
            stack += found.auth_event_ids
        return False

    def _adopt(self, event: ParsedEvent, group: int, computed: int | None) -> int:
        if group not in self._adopted:
            state = {key: event_id for key, (event_id, _) in state_of_group(self._connection, group).items()}
            self._load(state.values())
            prevs = (self.after.get(prev) for prev in event.prev_event_ids)
            base = computed if computed is not None else next((number for number in prevs if number is not None), None)
            bases = {} if base is None else {base: self.builder.expand(base)}
            self._adopted[group] = self.builder.add_nearest(bases, state)
        return self._adopted[group]

    def _load(self, event_ids: Iterable[str]) -> None:
        # Entries of a state that was given may come later in the walk, such as outliers.
        room = self._room
        wanted = {event_id for event_id in event_ids if event_id not in self.events and event_id in room.keys}
        while wanted:
            assert room.events is not None  # noqa: S101 - the room is being walked
            loaded = room.events.fetch([room.keys[event_id][1] for event_id in sorted(wanted)])
            self.events.update((event.event_id, event) for event in loaded)
            auth = {other for event in loaded for other in event.auth_event_ids}
            wanted = {event_id for event_id in auth if event_id not in self.events and event_id in room.keys}

    def _remark(self, subject: str) -> None:
        self.remarks[subject] = self.remarks.get(subject, 0) + 1


def _may_be_later(ordering: int, ordering_here: int) -> bool:
    # Of backfilled events those that came later are more negative. Between a live and a backfilled event nothing tells.
    return (ordering > 0) != (ordering_here > 0) or abs(ordering) > abs(ordering_here)


def _rule(states: RoomStates, event: ParsedEvent) -> str:
    prevs = event.prev_event_ids
    groups = {states.after.get(prev) for prev in prevs}
    if not prevs:
        before = "the empty state"
    elif len(groups) == 1:
        before = f"the state after its prev event{'' if len(prevs) == 1 else 's'} {', '.join(prevs[:3])}"
    else:
        before = (
            f"the resolution of the states after its {len(prevs)} prev events, of which {len(groups)} differ "
            f"(state resolution of room version {states.version.name})"
        )
    if event.state_key is None:
        return f"the state after a message is the state before it: {before}"
    return f"the state after a state event is the state before it, {before}, with the event at its type and state key"


class _Ends:
    """Compares forward extremities, and the current state that follows from them."""

    def __init__(self, connection: Any, room: ServerRoom, context: Context, history: RoomHistory) -> None:
        self._connection, self._room, self._context, self._history = connection, room, context, history

    def check(self) -> None:
        room = self._room
        computed = set(self._history.forward_extremities())
        if not room.extremities:
            if computed:
                self._add(
                    Reason.NO_EXTREMITY,
                    f"The room {room.room_id} has no forward extremity, but {len(computed)} of its events should be.",
                    _insert(room.room_id, computed),
                    event_id=min(computed),
                    rule="the accepted events to which no accepted event refers are the forward extremities",
                )
            return
        for event_id in sorted(room.extremities - computed):
            self._find_wrong(event_id)
        missing = computed - room.extremities
        if missing and not room.unreadable:
            self._find_missing(sorted(missing))
        self._check_current_state()

    def _find_wrong(self, event_id: str) -> None:
        room = self._room
        delete = (
            f"With the server stopped: DELETE FROM event_forward_extremities WHERE room_id = {quoted(room.room_id)} "
            f"AND event_id = {quoted(event_id)};"
        )
        place = next((n for n, name in enumerate(self._events.event_ids()) if name == event_id), None)
        if place is None:
            if event_id not in room.unreadable:
                text = f"The forward extremity {event_id} is no event of the room."
                self._add(
                    Reason.EXTREMITY_UNKNOWN, text, delete, event_id=event_id, rule="a forward extremity is an event"
                )
            return
        (event,) = self._events.fetch([place])
        if event.outlier or event.rejected_reason is not None or event.soft_failed:
            is_what = "an outlier" if event.outlier else "soft-failed" if event.soft_failed else "rejected"
            self._add(
                Reason.EXTREMITY_NOT_ACCEPTED,
                f"The forward extremity {event_id} is {is_what}.",
                delete,
                event_id=event_id,
                rule="only accepted events are forward extremities",
            )
            return
        above = next(self._above(event_id), None)
        self._add(
            Reason.EXTREMITY_REFERRED_TO,
            f"The event {event_id} is a forward extremity"
            + (f", but the accepted event {above} refers to it." if above else ", but later events refer to it."),
            delete,
            event_id=event_id,
            rule="an event is no forward extremity any more once an accepted event refers to it",
        )

    def _above(self, event_id: str) -> Iterator[str]:
        for start in range(0, len(self._events), EVENTS_PER_CHUNK):
            end = min(start + EVENTS_PER_CHUNK, len(self._events))
            for event in self._events.fetch(range(start, end)):
                if event_id in event.prev_event_ids and not event.outlier and event.rejected_reason is None:
                    yield event.event_id

    def _find_missing(self, missing: Sequence[str]) -> None:
        room = self._room
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(_PLACES, [[*missing, *room.extremities]])
            places = {event_id: (sender, time) for event_id, _, sender, time in cursor.fetchall()}
        newest = max((places[event_id][1] or 0 for event_id in room.extremities if event_id in places), default=0)
        for event_id in missing:
            sender, time = places[event_id]
            is_own = (sender or "").rpartition(":")[2] == self._context.server if self._context.server else False
            # A server drops those that it need not merge: of other servers, and old or without effect on the state.
            if not is_own and ((time or 0) < newest - _DAY_MS or self._changes_nothing(event_id)):
                room.result.remark(PRUNED)
                continue
            self._add(
                Reason.EXTREMITY_MISSING,
                f"The event {event_id} is no forward extremity, but no accepted event refers to it.",
                _insert(room.room_id, [event_id]),
                event_id=event_id,
                rule="the accepted events to which no accepted event refers are the forward extremities",
            )

    def _changes_nothing(self, event_id: str) -> bool:
        without = self._history.state_after(self._room.extremities)
        return without is not None and without == self._history.state_after(self._room.extremities | {event_id})

    # --- current state ------------------------------------------------------------------------------------------
    def _check_current_state(self) -> None:
        room = self._room
        if not room.current and not room.is_joined:
            room.result.remark(LEFT)
            return
        expected = self._history.state_after(room.extremities)
        if expected is None:  # an extremity of which another finding tells
            return
        fix = (
            f"Take a backup, stop the server, and rebuild current_state_events of {room.room_id} from the state groups of its "
            "forward extremities; or purge the room and join it again."
        )
        rule = (
            f"the current state is the state after the forward extremit{'y' if len(room.extremities) == 1 else 'ies'} "
            f"{', '.join(sorted(room.extremities)[:3])}" + (", resolved" if len(room.extremities) > 1 else "")
        )
        for key in sorted(expected.keys() | room.current.keys()):
            wanted, (stored, membership) = expected.get(key), room.current.get(key, (None, None))
            if wanted != stored:
                self._add(
                    Reason.CURRENT_STATE_DIFFERS,
                    f"The current state of {room.room_id} has {stored or 'nothing'} at {_name(key)}, and should have "
                    f"{wanted or 'nothing'}.",
                    fix,
                    event_id=wanted or stored,
                    key=_name(key),
                    stored=stored,
                    computed=wanted,
                    rule=rule,
                )
            elif key[0] == _MEMBER and membership is not None and wanted is not None:
                self._check_membership(key, wanted, membership)

    def _check_membership(self, key: StateKey, event_id: str, membership: str) -> None:
        found = self._room.keys.get(event_id)
        if found is None:
            return
        (event,) = self._events.fetch([found[1]])
        if event.membership != membership:
            self._add(
                Reason.MEMBERSHIP_DIFFERS,
                f"The membership of {key[1]} in {self._room.room_id} is stored as {membership}; the event {event_id} says "
                f"{event.membership}.",
                f"With the server stopped: UPDATE current_state_events SET membership = {quoted(str(event.membership))} "
                f"WHERE event_id = {quoted(event_id)};",
                event_id=event_id,
                key=_name(key),
                stored=membership,
                computed=event.membership,
                rule="the membership is content.membership of the event",
            )

    @property
    def _events(self) -> Any:
        return self._room.events

    def _add(self, reason: Reason, text: str, fix: str, **more: str | None) -> None:
        self._room.result.add(Finding(reason, self._room.room_id, text, fix, **more))  # type: ignore[arg-type]


def _insert(room_id: str, event_ids: Iterable[str]) -> str:
    rows = ", ".join(f"({quoted(event_id)}, {quoted(room_id)})" for event_id in sorted(event_ids))
    return f"With the server stopped: INSERT INTO event_forward_extremities (event_id, room_id) VALUES {rows};"


def _name(key: StateKey) -> str:
    return " ".join(key).rstrip()
