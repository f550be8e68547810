"""The changes of a batch -> the tables, set by set. Assumes the caller's transaction with the rooms locked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from django.db import connections

from events.catalog import BACKFILL, EVENTS
from events.gap_filling import write_filled
from events.models import (
    CurrentStateDelta,
    Event,
    EventAuth,
    EventEdge,
    EventJson,
    EventVisibility,
    ForwardExtremity,
    Room,
)
from events.parsing import ParsedEvent
from events.room_batch import RoomChanges
from events.room_history import EVENT_COLUMNS, event_row
from events.stored_room import StoredRoom
from state.models import StateGroup, StateGroupDelta
from state.store import reserve_group_ids
from streams import registry
from streams.inserts import insert_facts
from streams.reservations import Reservation
from streams.writers import current_writer

__all__ = ["write_rooms"]

_FORGET_OUTLIERS = "DELETE FROM events_event WHERE event_id = ANY(%s)"
_DROP_LEAVES = "DELETE FROM events_forwardextremity WHERE event_id = ANY(%s)"
_CLOSE_GAPS = "DELETE FROM events_backwardextremity WHERE room_id = %s AND event_id = ANY(%s)"
_OPEN_GAPS = """
INSERT INTO events_backwardextremity (room_id, event_id)
SELECT %(room)s, prev FROM unnest(%(prevs)s::text[]) AS prev
WHERE NOT EXISTS (SELECT FROM events_event e WHERE e.event_id = prev AND NOT e.outlier)
ON CONFLICT (room_id, event_id) DO NOTHING RETURNING event_id
"""
_MARK_GAPS = """
INSERT INTO events_timelinegap (room_id, stream_ordering, instance_name)
SELECT %s, position, %s FROM unnest(%s::bigint[]) AS position
"""
_DROP_STATE = """
DELETE FROM events_currentstate c USING unnest(%s::text[], %s::text[]) AS gone (type, state_key)
WHERE c.room_id = %s AND c.type = gone.type AND c.state_key = gone.state_key
"""
_PUT_STATE = """
INSERT INTO events_currentstate (room_id, type, state_key, event_id, membership)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
ON CONFLICT (room_id, type, state_key) DO UPDATE SET event_id = excluded.event_id, membership = excluded.membership
"""
_CLOSE_RANGES = """
UPDATE events_eventvisibility v SET last = ended.last
FROM unnest(%(users)s::text[], %(kinds)s::text[], %(lasts)s::bigint[]) AS ended (user_id, kind, last)
WHERE v.room_id = %(room)s AND v.user_id IS NOT DISTINCT FROM ended.user_id AND v.kind = ended.kind AND v.last IS NULL
"""
_UNCUT = "DELETE FROM events_eventvisibility WHERE room_id = %s AND user_id = ANY(%s) AND kind = 'cut' AND last IS NULL"
_SHOW = """
DELETE FROM events_eventvisibility v USING events_event e
WHERE e.event_id = ANY(%s) AND v.room_id = e.room_id AND v.user_id IS NULL AND v.kind = 'withheld' AND v.first = e.stream_ordering
"""
_FLAG_REDACTED = """
UPDATE events_event SET redacted_by = applied.redaction
FROM unnest(%s::text[], %s::text[]) AS applied (target, redaction)
WHERE event_id = applied.target AND redacted_by IS NULL
"""
_POSITION = "SELECT stream_ordering FROM events_event WHERE event_id = %s"


@dataclass(slots=True)
class _Rows:
    """Rows of all rooms by model, written with one statement each."""

    by_model: dict[type[Any], list[Any]] = field(default_factory=dict)
    groups: list[StateGroup] = field(default_factory=list)

    def add(self, row: Any) -> None:
        self.by_model.setdefault(type(row), []).append(row)

    def write(self, connection: Any) -> None:
        StateGroup.objects.using(connection.alias).bulk_create(self.groups)  # keeps the IDs that we chose
        for model, rows in self.by_model.items():
            insert_facts(connection, model, rows)


def write_rooms(
    rooms: Sequence[tuple[Room, StoredRoom, RoomChanges]], stored_outliers: Collection[str], using: str
) -> dict[str, int]:
    """Write everything; returns the stream ordering of every stored event.

    ``stored_outliers`` are events of the batch that are here as outliers: they move to their new place.
    """
    with ExitStack() as stack:
        lives, olds = _reserve(stack, [changes for _, _, changes in rooms], using)
        positions = _all_positions(rooms, iter(lives.ids if lives else ()), list(olds.ids) if olds else [])
        if lives is None and olds is None and not any(changes.filled.events for _, _, changes in rooms):
            return positions
        rows = _Rows()
        facts, deltas = _write_rooms(rooms, rows, positions, stored_outliers, using)
        if lives is not None:
            lives.write(*(fact for fact in facts if fact.stream_ordering > 0), *deltas)
        if olds is not None:
            olds.write(*(fact for fact in facts if fact.stream_ordering < 0))
        rows.write(connections[using])
        with connections[using].cursor() as cursor:
            for room, stored, changes in rooms:
                _Room(cursor, room, stored, changes, positions).finish()
    return positions


def _reserve(
    stack: ExitStack, rooms: Sequence[RoomChanges], using: str
) -> tuple[Reservation | None, Reservation | None]:
    """Positions for live and for backfilled events, as many as there are, and for states that change by themselves."""
    backward = sum(event.backfilled for changes in rooms for event in changes.events)
    forward = sum(len(changes.events) + changes.own_place for changes in rooms) - backward
    lives = stack.enter_context(registry.get(EVENTS.name).reserve(forward, using)) if forward else None
    olds = stack.enter_context(registry.get(BACKFILL.name).reserve(backward, using)) if backward else None
    return lives, olds


def _all_positions(
    rooms: Sequence[tuple[Room, StoredRoom, RoomChanges]], ids: Iterator[int], old_ids: list[int]
) -> dict[str, int]:
    found: dict[str, int] = {}
    for room, _, changes in rooms:
        found |= _positions(room.room_id, changes, ids, old_ids)
    return found


def _write_rooms(
    rooms: Sequence[tuple[Room, StoredRoom, RoomChanges]],
    rows: _Rows,
    positions: dict[str, int],
    stored_outliers: Collection[str],
    using: str,
) -> tuple[list[Event], list[CurrentStateDelta]]:
    """Make way and collect the rows; returns the facts: events and changes of current states."""
    facts: list[Event] = []
    deltas: list[CurrentStateDelta] = []
    with connections[using].cursor() as cursor:
        for room, stored, changes in rooms:
            writer = _Room(cursor, room, stored, changes, positions)
            writer.make_way(stored_outliers)
            writer.collect(rows, stored_outliers)
            facts += writer.facts(rows)
            deltas += writer.deltas()
    return facts, deltas


def _positions(room_id: str, changes: RoomChanges, ids: Iterator[int], old_ids: list[int]) -> dict[str, int]:
    """Live events in their order; backfilled ones so that the oldest is furthest from zero."""
    old = [event for event in changes.events if event.backfilled]
    taken = [old_ids.pop(0) for _ in old]
    found = {event.event_id: -number for event, number in zip(reversed(old), taken, strict=True)}
    found |= {event.event_id: next(ids) for event in changes.events if not event.backfilled}
    return found | {room_id: next(ids)} if changes.own_place else found


class _Room:
    """Writing one room."""

    def __init__(
        self, cursor: Any, room: Room, stored: StoredRoom, changes: RoomChanges, positions: dict[str, int]
    ) -> None:
        self._cursor = cursor
        self._room = room
        self._stored = stored
        self._changes = changes
        self._positions = positions
        self._graph = [event for event in changes.events if not event.outlier]

    def make_way(self, stored_outliers: Collection[str]) -> None:
        """Remove what is written anew."""
        moved = [event.event_id for event in self._changes.events if event.event_id in stored_outliers]
        if moved:
            self._cursor.execute(_FORGET_OUTLIERS, [moved])
        if self._changes.gone_leaves:
            self._cursor.execute(_DROP_LEAVES, [self._changes.gone_leaves])
        self._end_ranges()

    def collect(self, rows: _Rows, stored_outliers: Collection[str]) -> None:
        """Rows of the tables that only grow."""
        for event in self._changes.events:
            if event.event_id not in stored_outliers:
                rows.add(EventJson(event_id=event.event_id, room_version=event.room_version, json=event.json))
                if event.is_state:
                    rows.add(EventAuth(event_id=event.event_id, auth_event_ids=list(event.auth_event_ids)))
        for event in self._graph:
            for prev in event.prev_event_ids:
                rows.add(EventEdge(event_id=event.event_id, prev_event_id=prev))
        for leaf in self._changes.new_leaves:
            rows.add(ForwardExtremity(event_id=leaf, room_id=self._room.room_id))
        if not self._changes.visibility_unresolved:
            place = self._place()
            for row in self._changes.ranges:
                last = None if row.last is None else place(row.last)
                rows.add(
                    EventVisibility(
                        room_id=self._room.room_id,
                        user_id=row.user_id,
                        kind=row.kind,
                        first=place(row.first),
                        last=last,
                    )
                )
            for row in self._changes.filled_ranges:
                where = {"room_id": self._room.room_id, "user_id": row.user_id, "kind": row.kind}
                rows.add(EventVisibility(first=row.first, last=row.last, **where))

    def facts(self, rows: _Rows) -> Iterable[Event]:
        """The events; the rows of new groups are added."""
        groups, redacted = self._collect_groups(rows), self._changes.redacted
        write_filled(self._changes.filled, groups, self._stored.using)
        for event in self._changes.events:
            row = event_row(event, redacted.get(event.event_id), groups.get(event.event_id))
            yield Event(stream_ordering=self._positions[event.event_id], **dict(zip(EVENT_COLUMNS, row, strict=True)))

    def deltas(self) -> list[CurrentStateDelta]:
        """The changes of the current state as facts."""
        return [
            CurrentStateDelta(
                stream_ordering=self._positions[self._key(number)],
                room_id=self._room.room_id,
                type=event_type,
                state_key=state_key,
                event_id=event_id,
                prev_event_id=before,
            )
            for number, event_type, state_key, event_id, before in self._changes.state_changes
        ]

    def _key(self, number: int) -> str:
        """What a number's position is found by; a change of state that comes with no event has that of the room."""
        return self._changes.events[number].event_id if number < len(self._changes.events) else self._room.room_id

    def finish(self) -> None:
        """What is changed in place, after the rows are in."""
        self._gaps()
        self._current_state()
        if self._changes.redacted:
            pairs = self._changes.redacted
            self._cursor.execute(_FLAG_REDACTED, [list(pairs), list(pairs.values())])
        self._room_row()

    # --- groups -------------------------------------------------------------------------------------------------
    def _collect_groups(self, rows: _Rows) -> dict[str, int]:
        """New groups that events need, under fresh IDs; those of current states on the way are not stored.

        Returns the group of each event.
        """
        stored, builder = self._stored, self._stored.builder
        graph = [*self._graph, *self._changes.filled.events]
        after = {e.event_id: stored.after[e.event_id] for e in graph if e.event_id in stored.after}
        new = sorted(builder.kept(after.values()) - stored.ids.keys())
        ids = dict(stored.ids)
        if new:
            ids.update(zip(new, reserve_group_ids(self._cursor, len(new)), strict=True))
            chains = stored.chain_of([ids[chain] for _, _, chain, *_ in builder.group_rows(new) if chain in stored.ids])
            chain_ids = {chain: chains.get(ids[chain], ids[chain]) for _, _, chain, *_ in builder.group_rows(new)}
            for number, prev, chain, hops, keys, to_read in builder.group_rows(new):
                rows.groups.append(
                    StateGroup(
                        id=ids[number],
                        room_id=self._room.room_id,
                        prev_group=None if prev is None else ids[prev],
                        chain=chain_ids[chain],
                        hops=hops,
                        keys=keys,
                        rows_to_read=to_read,
                    )
                )
            for chain, group, event_type, state_key, event_id in builder.delta_rows(new):
                where = {"type": event_type, "state_key": state_key, "event_id": event_id}
                rows.add(StateGroupDelta(chain=chain_ids[chain], state_group=ids[group], **where))
            stored.keep_state(ids[new[-1]], new[-1])
        return {event_id: ids[number] for event_id, number in after.items()}

    # --- what changes in place ----------------------------------------------------------------------------------
    def _gaps(self) -> None:
        here = [event.event_id for event in self._graph]
        if here:
            self._cursor.execute(_CLOSE_GAPS, [self._room.room_id, here])
        missing = {prev for event in self._graph for prev in event.prev_event_ids if not self._in_graph(prev)}
        if missing:
            self._cursor.execute(_OPEN_GAPS, {"room": self._room.room_id, "prevs": sorted(missing)})
            self._mark_gaps({event_id for (event_id,) in self._cursor.fetchall()})

    def _mark_gaps(self, new: set[str]) -> None:
        """Where a sync from below meets a gap: at the first live event above it."""
        above: set[int] = set()
        for event in self._graph:
            below = new.intersection(event.prev_event_ids) if not event.backfilled else set()
            if below:
                above.add(self._positions[event.event_id])
                new -= below
        if above:
            writer = current_writer(self._stored.using).name
            self._cursor.execute(_MARK_GAPS, [self._room.room_id, writer, sorted(above)])

    def _in_graph(self, event_id: str) -> bool:
        found: ParsedEvent | None = self._stored.events.get(event_id)
        return found is not None and not found.outlier

    def _current_state(self) -> None:
        if self._changes.current_unresolved:
            if not self._room.current_state_unresolved:
                self._cursor.execute("DELETE FROM events_currentstate WHERE room_id = %s", [self._room.room_id])
            return
        final = {(kind, key): event_id for _, kind, key, event_id, _ in self._changes.state_changes}
        gone = [key for key, event_id in final.items() if event_id is None]
        put = [(*key, event_id) for key, event_id in final.items() if event_id is not None]
        if gone:
            self._cursor.execute(_DROP_STATE, [[k[0] for k in gone], [k[1] for k in gone], self._room.room_id])
        if put:
            events = self._stored.events
            memberships = [found.membership if (found := events.get(row[2])) else None for row in put]
            columns = [list(column) for column in zip(*put, strict=True)]
            self._cursor.execute(_PUT_STATE, [[self._room.room_id] * len(put), *columns, memberships])

    def _end_ranges(self) -> None:
        """Before new ranges of the same users come in."""
        changes, room_id = self._changes, self._room.room_id
        if changes.visibility_unresolved:
            if not self._room.visibility_unresolved:
                self._cursor.execute("DELETE FROM events_eventvisibility WHERE room_id = %s", [room_id])
            return
        if changes.closed:
            place = self._place()
            users, kinds, lasts = zip(*changes.closed, strict=True)
            where = {"room": room_id, "users": list(users), "kinds": list(kinds), "lasts": [place(n) for n in lasts]}
            self._cursor.execute(_CLOSE_RANGES, where)
        if changes.uncut:
            self._cursor.execute(_UNCUT, [room_id, changes.uncut])
        if changes.now_shown:
            self._cursor.execute(_SHOW, [changes.now_shown])

    def _place(self) -> Callable[[int], int]:
        """Stream position of an event's number; -1 is the last accepted event before the batch."""
        before: int | None = None

        def place(number: int) -> int:
            nonlocal before
            if number >= 0:
                return self._positions[self._changes.events[number].event_id]
            if before is None:
                self._cursor.execute(_POSITION, [self._changes.last_accepted])
                before = self._cursor.fetchone()[0]
            return before

        return place

    def _room_row(self) -> None:
        changes, room = self._changes, self._room
        new: dict[str, Any] = {
            "current_state_unresolved": changes.current_unresolved,
            "visibility_unresolved": changes.visibility_unresolved,
        }
        if changes.create is not None and changes.create.rejected_reason is None:
            new |= {"creator": changes.create.sender, "create_event_id": changes.create.event_id}
        new = {name: value for name, value in new.items() if getattr(room, name) != value}
        if new:
            Room.objects.using(self._stored.using).filter(pk=room.pk).update(**new)
