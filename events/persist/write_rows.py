"""Writes the changes of a batch, table by table. Once positions are reserved, all rows go to the server in one message.

Assumes the caller's transaction with the rooms locked. Changes that only few batches have (new state groups, gaps) take
additional round trips.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from django.db import connections
from django.db.models import Model

from events.columns import EVENT_COLUMNS, INSERT_INTO, event_row
from events.declarations import BACKFILL, EVENTS
from events.errors import EventUnreadable
from events.models import (
    CurrentState,
    CurrentStateDelta,
    Event,
    EventAuth,
    EventEdge,
    EventJson,
    EventVisibility,
    ForwardExtremity,
    Room,
)
from events.persist.backfill_ranges import write_backfill_ranges
from events.persist.room_batch import RoomChanges
from events.persist.room_cache import StoredRoom
from events.persist.state_changes import users_of
from events.room.graph import is_accepted
from events.visibility.rebuild import rebuild_visibility
from state.models import StateGroup, StateGroupDelta
from state.store import reserve_group_ids
from streams import registry
from streams.caches import invalidate_room_states
from streams.db.driver import Statement, send_together
from streams.facts import Fact
from streams.writing.append import append_facts
from streams.writing.insert import insert_statements
from streams.writing.name import writer_name
from streams.writing.reservation import reserve_ids

_FORGET_OUTLIERS = "DELETE FROM events_event WHERE event_id = ANY(%s::text[])"
#: Replaces forward extremities by others. An updated row takes the place of a deleted row and an inserted row.
_MOVE_EXTREMITIES = """
UPDATE events_forwardextremity leaf SET event_id = moved.new
FROM unnest(%s::text[], %s::text[]) AS moved (old, new) WHERE leaf.event_id = moved.old
"""
_DROP_EXTREMITIES = "DELETE FROM events_forwardextremity WHERE event_id = ANY(%s::text[])"
_CLOSE_GAPS = "DELETE FROM events_backwardextremity WHERE room_id = %s AND event_id = ANY(%s::text[])"
#: Inserts backward extremities. Runs after the events of the batch are inserted, so that none of them becomes one.
_OPEN_GAPS = f"""
{INSERT_INTO["events_backwardextremity"]}
SELECT %(room)s, prev FROM unnest(%(prevs)s::text[]) AS prev
WHERE NOT EXISTS (SELECT FROM events_event e WHERE e.event_id = prev AND e.room_id = %(room)s AND NOT e.outlier)
ON CONFLICT (room_id, event_id) DO NOTHING RETURNING event_id
"""
_MARK_GAPS = f"""
{INSERT_INTO["events_timelinegap"]}
SELECT %s, position, %s FROM unnest(%s::bigint[]) AS position
"""
_WRITE_FILLED = """
UPDATE events_event e SET state_group = filled.state_group, state_unresolved = false, rejected_reason = filled.reason
FROM unnest(%s::text[], %s::bigint[], %s::text[]) AS filled (event_id, state_group, reason)
WHERE e.event_id = filled.event_id
"""
_DROP_ALL_STATE = "DELETE FROM events_currentstate WHERE room_id = %s"
_DROP_RANGES = "DELETE FROM events_eventvisibility WHERE room_id = %s"
_DROP_STATE = """
DELETE FROM events_currentstate c USING unnest(%s::text[], %s::text[]) AS gone (type, state_key)
WHERE c.room_id = %s::text AND c.type = gone.type AND c.state_key = gone.state_key
"""
_PUT_STATE = f"""
{INSERT_INTO["events_currentstate"]}
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
ON CONFLICT (room_id, type, state_key) DO UPDATE SET event_id = excluded.event_id, membership = excluded.membership
"""
#: Ends ranges. ``greatest`` is needed because, after a purge, a range may begin above the last event that is left.
_CLOSE_RANGES = """
UPDATE events_eventvisibility v SET last = greatest(v.first, ended.last)
FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS ended (user_id, kind, last)
WHERE v.room_id = %s::text AND v.user_id IS NOT DISTINCT FROM ended.user_id AND v.kind = ended.kind AND v.last IS NULL
"""
_UNCUT = "DELETE FROM events_eventvisibility WHERE room_id = %s AND user_id = ANY(%s::text[]) AND kind = 'cut' AND last IS NULL"
_SHOW = """
DELETE FROM events_eventvisibility v USING events_event e
WHERE e.event_id = ANY(%s::text[]) AND v.room_id = e.room_id AND v.user_id IS NULL AND v.kind = 'withheld'
  AND v.first = e.stream_ordering
"""
#: Removes the effect of redactions that turned out to be rejected.
_UNFLAG = """
UPDATE events_event e SET redacted_by = NULL FROM events_event redaction
WHERE redaction.event_id = ANY(%s::text[]) AND e.event_id = redaction.redacts AND e.redacted_by = redaction.event_id
"""
_FLAG_REDACTED = """
UPDATE events_event SET redacted_by = applied.redaction
FROM unnest(%s::text[], %s::text[]) AS applied (target, redaction)
WHERE event_id = applied.target AND redacted_by IS NULL
"""
_MOST_ROWS = 1_000


@dataclass(slots=True)
class _Statements:
    # Sent in this order: ``before``, inserts of facts, ``rows``, ``after``.
    before: list[Statement] = field(default_factory=list)
    facts: list[Event | CurrentStateDelta] = field(default_factory=list)
    rows: dict[type[Model], list[tuple[Any, ...]]] = field(default_factory=dict)
    after: list[Statement] = field(default_factory=list)

    def add(self, model: type[Model], *values: Any) -> None:
        self.rows.setdefault(model, []).append(values)

    def send(self, writer: str, using: str) -> None:
        by_model: dict[type[Model], list[Fact]] = {}
        for fact in self.facts:
            fact.instance_name = writer
            by_model.setdefault(type(fact), []).append(fact)
        for model, facts in by_model.items():
            self.before += insert_statements(connections[using], model, facts)
        if statements := self.statements():
            send_together(connections[using], statements)

    def statements(self) -> list[Statement]:
        return [*self.before, *self._inserts(), *self.after]

    def _inserts(self) -> Iterator[Statement]:
        for model, rows in self.rows.items():
            place = f"({', '.join(['%s'] * len(rows[0]))})"
            head = f"{INSERT_INTO[model._meta.db_table]} VALUES "
            for first in range(0, len(rows), _MOST_ROWS):
                part = rows[first : first + _MOST_ROWS]
                values = [value for row in part for value in row]
                yield Statement(head + ", ".join([place] * len(part)), values, again=len(part) == 1)


def write_rooms(
    rooms: Sequence[tuple[Room, StoredRoom, RoomChanges]], stored_outliers: Collection[str], using: str
) -> dict[str, int]:
    """Writes the changes of all rooms.

    Returns the stream ordering of every stored event, by event ID.

    ``stored_outliers`` are events of the batch that are stored as outliers. They move to a new stream position.
    """
    # Both ways of writing reserve positions under the locks of all rooms. Without the lock: A reserves 5 and B reserves 6 for one
    # room. B gets the lock first and stores 6. A then stores 5 on top of 6, and positions do not ascend in causal order.
    if len(rooms) == 1 and _is_lone_message(rooms[0][2]):
        return _write_lone(*rooms[0], stored_outliers, using)
    if not any(_has_rows(changes) for _, _, changes in rooms):
        return {}
    groups = [_Groups(using, stored, changes) for _, stored, changes in rooms]
    writer, positions = _reserve_positions([(room, changes) for room, _, changes in rooms], using)
    writing = _Statements()
    writers = [_RoomWriter(writing, *room, positions, groups_of) for room, groups_of in zip(rooms, groups, strict=True)]
    for room_writer in writers:
        room_writer.collect(stored_outliers)
    # Computed before the rows are sent, because some of these users are read from the stored current state.
    changed = [
        (room_writer.room_id, users) for room_writer in writers if (users := room_writer.changed_members()) is not None
    ]
    writing.send(writer, using)
    for room_writer in writers:
        room_writer.finish(using)
    if changed:  # last, because readers of the stream ``caches`` wait for this position until the transaction ends
        invalidate_room_states(changed, using)
    return positions


def _has_rows(changes: RoomChanges) -> bool:
    return bool(
        changes.events
        or changes.needs_own_position
        or changes.filled.events
        or changes.new_extremities
        or changes.removed_extremities
    )


def _is_lone_message(changes: RoomChanges) -> bool:
    # A single new live event, and no other row contains its position: most messages.
    changed = (changes.state_changes, changes.ranges, changes.closed, changes.needs_own_position)
    again = (changes.filled.events, changes.visibility_to_rebuild)
    return len(changes.events) == 1 and not changes.events[0].backfilled and not any((*changed, *again))


def _write_lone(
    room: Room, stored: StoredRoom, changes: RoomChanges, stored_outliers: Collection[str], using: str
) -> dict[str, int]:
    # The message that sends the rows also reserves the position.
    positions: dict[str, int] = {}
    writing = _Statements()
    writer = _RoomWriter(writing, room, stored, changes, positions, _Groups(using, stored, changes))
    writer.collect(stored_outliers)
    users = writer.changed_members()  # of a redaction, as other state changes need more positions
    # The message is sent under the room's lock, so no other transaction stores an event in this room between the reservation and
    # the commit.
    (position,) = append_facts(registry.get(EVENTS.name), writing.facts, using, writing.statements())
    positions[changes.events[0].event_id] = position
    writer.finish(using)
    if users is not None:
        invalidate_room_states([(writer.room_id, users)], using)
    return positions


def _reserve_positions(rooms: Sequence[tuple[Room, RoomChanges]], using: str) -> tuple[str, dict[str, int]]:
    old = sum(event.backfilled for _, changes in rooms for event in changes.events)
    live = sum(len(changes.events) + changes.needs_own_position for _, changes in rooms) - old
    counts = [(registry.get(stream.name), count) for stream, count in ((EVENTS, live), (BACKFILL, old)) if count]
    writer, reserved = reserve_ids(counts, using)
    ids, old_ids = iter(reserved[0] if live else ()), iter(reserved[-1] if old else ())
    found: dict[str, int] = {}
    for room, changes in rooms:
        backfilled = [event for event in changes.events if event.backfilled]
        for event in reversed(backfilled):  # the oldest gets the lowest position
            found[event.event_id] = -next(old_ids)
        for event in changes.events:
            if not event.backfilled:
                found[event.event_id] = next(ids)
        if changes.needs_own_position:  # a state change without a live event is under the room ID
            found[room.room_id] = next(ids)
    return writer, found


def _fact(position: int | None, row: Sequence[object]) -> Event:
    given: dict[str, Any] = {"stream_ordering": position, **dict(zip(EVENT_COLUMNS, row, strict=True))}
    # Positional values take Django half the time of keyword arguments.
    fields = Event._meta.concrete_fields
    values: list[Any] = [given[f.attname] if f.attname in given else f.get_default() for f in fields]
    make: Any = Event  # the type checker accepts keyword arguments only
    event: Event = make(*values)
    return event


class _Groups:
    # New state groups of events. Groups of intermediate current states, which no event has, are not stored.
    def __init__(self, using: str, stored: StoredRoom, changes: RoomChanges) -> None:
        events = (*(event for event in changes.events if not event.outlier), *changes.filled.events)
        self._stored = stored
        self._after = {e.event_id: stored.after[e.event_id] for e in events if e.event_id in stored.after}
        needed = set(self._after.values()) - stored.ids.keys()
        self._new = sorted(stored.builder.kept(needed) - stored.ids.keys()) if needed else []
        changes.reused_groups = len(self._after) - len(set(self._after.values()).intersection(self._new))
        self._ids = dict(stored.ids)
        # IDs are reserved under the room's lock, under which also the last group of each chain was read (``is_tip``). Without the
        # lock: A and B both find group 5 to be the last of its chain, A appends group 6 to the chain and B group 7. Readers of 7
        # would then apply the delta of 6, too.
        if self._new:
            with connections[using].cursor() as cursor:
                self._ids.update(zip(self._new, reserve_group_ids(cursor, len(self._new)), strict=True))

    def of_events(self) -> dict[str, int]:
        return {event_id: self._ids[number] for event_id, number in self._after.items()}

    def add_rows(self, writing: _Statements, room_id: str) -> list[tuple[bool, int]]:
        # Returns (is it stored in full, its hops) for each group. The next batch is likely to need the state of the
        # last.
        if self._stored.resolved:
            self._stored.cache_resolved(self._ids)
        if not self._new:
            return []
        builder, ids = self._stored.builder, self._ids
        written: list[tuple[bool, int]] = []
        for number, prev, chain, hops, keys, to_read in builder.group_rows(self._new):
            below = None if prev is None else ids[prev]
            written.append((prev is None, hops))
            writing.add(StateGroup, ids[number], room_id, below, self._chain(chain), hops, keys, to_read)
        for chain, group, event_type, state_key, event_id in builder.delta_rows(self._new):
            writing.add(StateGroupDelta, self._chain(chain), ids[group], event_type, state_key, event_id)
        self._stored.cache_state(ids[self._new[-1]], self._new[-1])
        return written

    def _chain(self, number: int) -> int:
        return self._stored.chains.get(number, self._ids[number])


class _RoomWriter:
    def __init__(
        self,
        writing: _Statements,
        room: Room,
        stored: StoredRoom,
        changes: RoomChanges,
        positions: dict[str, int],
        groups: _Groups,
    ) -> None:
        self._writing = writing
        self._room = room
        self._stored = stored
        self._changes = changes
        self._positions = positions
        self._groups = groups
        self._graph = [event for event in changes.events if not event.outlier]

    def collect(self, stored_outliers: Collection[str]) -> None:
        self._delete_and_move(stored_outliers)
        self._events(stored_outliers)
        self._changes.new_groups = self._groups.add_rows(self._writing, self._room.room_id)
        self._state_changes()
        self._ranges()
        gaps = self._stored.reading.gaps
        if gaps and (closed := sorted(gaps.intersection(event.event_id for event in self._graph))):
            self._run_after(_CLOSE_GAPS, self._room.room_id, closed)
        self._current_state()
        if self._changes.filled.rejected:
            self._run_after(_UNFLAG, self._changes.filled.rejected)
        if self._changes.redacted:
            pairs = self._changes.redacted
            self._run_after(_FLAG_REDACTED, list(pairs), list(pairs.values()))
        self._room_row()

    def _run_before(self, text: str, *values: Any) -> None:
        self._writing.before.append(Statement(text, values))

    def _run_after(self, text: str, *values: Any) -> None:
        self._writing.after.append(Statement(text, values))

    @property
    def room_id(self) -> str:
        return self._room.room_id

    def changed_members(self) -> list[str] | None:
        """Returns the users whose membership in the current state changes, or None if that state does not change.

        Every process that keeps what depends on the state, and every worker of version 1.43, reads the row of
        ``caches`` that is written with each change. Must be called before the rows are written.
        """
        changes, known = self._changes, self._stored.events
        if changes.current_unresolved and not self._room.current_state_unresolved:
            members = CurrentState.objects.using(self._stored.using).filter(room_id=self.room_id, type="m.room.member")
            return list(members.values_list("state_key", flat=True))
        users = {user for _, kind, key, _, _ in changes.state_changes for user in users_of(kind, key)}
        # Redactions that take effect now, and those that lost their effect.
        rejected = set(changes.filled.rejected)
        unflagged = [event.redacts or "" for event in changes.filled.events if event.event_id in rejected]
        targets = [event for event_id in (*changes.redacted, *unflagged) if (event := known.get(event_id)) is not None]
        states = [event for event in targets if event.is_state]
        users.update(user for event in states for user in users_of(event.type, event.state_key or ""))
        return sorted(users) if changes.state_changes or states else None

    # --- removed and added rows ----------------------------------------------------------------------
    def _delete_and_move(self, stored_outliers: Collection[str]) -> None:
        moved = [event.event_id for event in self._changes.events if event.event_id in stored_outliers]
        if moved:  # first: the outlier's row and the new row of the event have the same event ID, which is unique
            self._run_before(_FORGET_OUTLIERS, moved)
        removed, new = self._changes.removed_extremities, self._changes.new_extremities
        both = min(len(removed), len(new))
        if both:
            self._run_before(_MOVE_EXTREMITIES, removed[:both], new[:both])
        if removed[both:]:
            self._run_before(_DROP_EXTREMITIES, removed[both:])
        for extremity in new[both:]:
            self._writing.add(ForwardExtremity, extremity, self._room.room_id)
        self._close_ranges()

    def _events(self, stored_outliers: Collection[str]) -> None:
        writing, groups, redacted = self._writing, self._groups.of_events(), self._changes.redacted
        if filled := self._changes.filled.events:
            rows = [(event.event_id, groups[event.event_id], event.rejected_reason) for event in filled]
            with connections[self._stored.using].cursor() as cursor:
                cursor.execute(_WRITE_FILLED, [list(column) for column in zip(*rows, strict=True)])
        for event in self._changes.events:
            row = event_row(event, redacted.get(event.event_id), groups.get(event.event_id))
            place = self._positions.get(event.event_id)  # None: assigned when it is inserted (``_write_lone``)
            writing.facts.append(_fact(place, row))
            if event.event_id not in stored_outliers:
                writing.add(EventJson, event.event_id, event.room_version, event.json)
                if event.state_key is not None:
                    writing.add(EventAuth, event.event_id, list(event.auth_event_ids))
        for event in self._graph:
            for prev in event.prev_event_ids:
                writing.add(EventEdge, event.event_id, prev)

    def _state_changes(self) -> None:
        events = self._changes.events
        # A number behind the events stands for a state change without a live event.
        self._writing.facts += [
            CurrentStateDelta(
                stream_ordering=self._positions[events[number].event_id if number < len(events) else self.room_id],
                room_id=self._room.room_id,
                type=event_type,
                state_key=state_key,
                event_id=event_id,
                prev_event_id=before,
            )
            for number, event_type, state_key, event_id, before in self._changes.state_changes
        ]

    # --- updated rows ----------------------------------------------------------------------------------
    def finish(self, using: str) -> None:
        """Writes what can be computed only after all other rows are stored: gaps, and ranges that are computed from rows."""
        self._open_gaps(using)
        # After the rows were sent: a rebuild reads events, groups and the current state from the tables, in this transaction.
        if self._changes.visibility_to_rebuild:
            with suppress(EventUnreadable):  # then nobody is shown anything, until the event is restored
                rebuild_visibility(self._room.room_id, using)
        elif self._changes.old_states is not None and (self._changes.backfilled or self._changes.filled.events):
            filled = self._changes.filled
            new = [self._positions[e.event_id] for e in self._graph[: self._changes.backfilled] if is_accepted(e)]
            again = [e for e in filled.events if is_accepted(e) or e.event_id in filled.rejected]
            old = [place for e in again if (place := filled.places[e.event_id]) < 0]
            if new or old:
                write_backfill_ranges(self._stored, self._changes.old_states, [*new, *old])

    def _open_gaps(self, using: str) -> None:
        missing = {prev for event in self._graph for prev in event.prev_event_ids if not self._stored.in_graph(prev)}
        if missing:
            with connections[using].cursor() as cursor:
                cursor.execute(_OPEN_GAPS, {"room": self._room.room_id, "prevs": sorted(missing)})
                new = {event_id for (event_id,) in cursor.fetchall()}
                # At the first live event above each new backward extremity. A sync with a token below it reports the gap.
                above: set[int] = set()
                for event in self._graph[self._changes.backfilled :]:
                    if below := new.intersection(event.prev_event_ids):
                        above.add(self._positions[event.event_id])
                        new -= below
                if above:
                    cursor.execute(_MARK_GAPS, [self._room.room_id, writer_name(), sorted(above)])

    def _current_state(self) -> None:
        if self._changes.current_unresolved:
            if not self._room.current_state_unresolved:
                self._run_after(_DROP_ALL_STATE, self._room.room_id)
            return
        if not self._changes.state_changes:
            return
        final = {(kind, key): event_id for _, kind, key, event_id, _ in self._changes.state_changes}
        removed = [key for key, event_id in final.items() if event_id is None]
        put = [(*key, event_id) for key, event_id in final.items() if event_id is not None]
        if removed:
            self._run_after(_DROP_STATE, [k[0] for k in removed], [k[1] for k in removed], self._room.room_id)
        if put:
            events = self._stored.events
            memberships = [found.membership if (found := events.get(row[2])) else None for row in put]
            columns = [list(column) for column in zip(*put, strict=True)]
            self._run_after(_PUT_STATE, [self._room.room_id] * len(put), *columns, memberships)

    def _close_ranges(self) -> None:
        # before new ranges of the same users are inserted
        changes, room_id = self._changes, self._room.room_id
        if changes.visibility_unresolved:
            if not self._room.visibility_unresolved:
                self._run_before(_DROP_RANGES, room_id)
            return
        if changes.closed:
            users, kinds, lasts = zip(*changes.closed, strict=True)
            self._run_before(_CLOSE_RANGES, list(users), list(kinds), [self._place(n) for n in lasts], room_id)
        if changes.uncut:
            self._run_before(_UNCUT, room_id, changes.uncut)
        if changes.now_shown:
            self._run_before(_SHOW, changes.now_shown)

    def _ranges(self) -> None:
        changes, room_id = self._changes, self._room.room_id
        if changes.visibility_unresolved:
            return
        for row in changes.ranges:
            last = None if row.last is None else self._place(row.last)
            self._writing.add(EventVisibility, room_id, row.user_id, row.kind, self._place(row.first), last)

    def _place(self, number: int) -> int:
        # -1: the last accepted event before the batch
        if number >= 0:
            return self._positions[self._changes.events[number].event_id]
        before = self._changes.last_position
        if before is None:
            raise LookupError(f"{self._room.room_id}: a range goes on where nothing was")
        return before

    def _room_row(self) -> None:
        changes, room = self._changes, self._room
        new: dict[str, Any] = {
            "current_state_unresolved": changes.current_unresolved,
            "visibility_unresolved": changes.visibility_unresolved,
        }
        if changes.create is not None and changes.create.rejected_reason is None:
            new |= {"creator": changes.create.sender, "create_event_id": changes.create.event_id}
        if changes.is_late:  # so that processes drop resolutions and verdicts that they cached
            new["content_generation"] = room.content_generation + 1
        new = {name: value for name, value in new.items() if getattr(room, name) != value}
        if new:
            Room.objects.using(self._stored.using).filter(pk=room.pk).update(**new)
