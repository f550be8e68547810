"""Writes the changes of a batch, table by table. Once positions are reserved, all rows go to the server in one message.

Assumes the caller's transaction with the rooms locked. Changes that only few batches have (new state groups, gaps) take
additional round trips.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import starmap
from typing import Any

from django.db import connections
from django.db.models import Model
from django.db.models.base import ModelState

from events.columns import EVENT_COLUMNS, event_row
from events.declarations import BACKFILL, EVENTS
from events.errors import EventUnreadable
from events.models import CurrentStateDelta, Event
from events.persist.backfill_ranges import write_backfill_ranges
from events.persist.next_rows import RoomChanges
from events.persist.rebuild_visibility import rebuild_visibility
from events.persist.room_cache import StoredRoom
from events.persist.state_changes import users_of
from events.room.graph import is_accepted
from events.rows import RoomRows, open_gaps, write
from state.group_ids import GROUP_SEQUENCE, reserve_group_ids
from streams import registry
from streams.caches import append_invalidations
from streams.db.driver import Statement
from streams.facts import Fact
from streams.writing.append import append_facts
from streams.writing.insert import insert_statements
from streams.writing.name import writer_name
from streams.writing.reservation import reserve_ids

_FACT_ATTRIBUTES = ("stream_ordering", *EVENT_COLUMNS)


@dataclass(slots=True)
class _Writing:
    rows: RoomRows = field(default_factory=RoomRows)
    facts: list[Event | CurrentStateDelta] = field(default_factory=list)

    def send(self, writer: str, using: str) -> None:
        by_model: dict[type[Model], list[Fact]] = {}
        for fact in self.facts:
            fact.instance_name = writer
            by_model.setdefault(type(fact), []).append(fact)
        facts = [
            statement
            for model, some in by_model.items()
            for statement in insert_statements(connections[using], model, some)
        ]
        append_invalidations(self.rows.stale, using, self.statements(facts))

    def statements(self, facts: Sequence[Statement] = ()) -> list[Statement]:
        before, after = self.rows.before_facts(), self.rows.after_facts()
        return [*starmap(Statement, before), *facts, *starmap(Statement, after)]


def write_rooms(
    rooms: Sequence[tuple[StoredRoom, RoomChanges]], stored_outliers: Collection[str], using: str
) -> dict[str, int]:
    """Writes the changes of all rooms.

    Returns the stream ordering of every stored event, by event ID.

    ``stored_outliers`` are events of the batch that are stored as outliers. They move to a new stream position.
    """
    # Both ways of writing reserve positions under the locks of all rooms. Without the lock: A reserves 5 and B reserves 6 for one
    # room. B gets the lock first and stores 6. A then stores 5 on top of 6, and positions do not ascend in causal order.
    if len(rooms) == 1 and _is_lone_message(rooms[0][1]):
        return _write_lone(*rooms[0], stored_outliers, using)
    if not any(_has_rows(changes) for _, changes in rooms):
        return {}
    groups = [_Groups(*room) for room in rooms]
    writer, positions = _reserve_positions(rooms, groups, using)
    writing = _Writing()
    writers = [_RoomWriter(writing, *room, positions, groups_of) for room, groups_of in zip(rooms, groups, strict=True)]
    for room_writer in writers:
        room_writer.collect(stored_outliers)
    writing.send(writer, using)
    for room_writer in writers:
        room_writer.finish(using)
    return positions


def _has_rows(changes: RoomChanges) -> bool:
    return bool(
        changes.events
        or changes.loses_state
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


def _write_lone(room: StoredRoom, changes: RoomChanges, stored_outliers: Collection[str], using: str) -> dict[str, int]:
    # The message that sends the rows also reserves the position.
    positions: dict[str, int] = {}
    writing = _Writing()
    groups = _Groups(room, changes)
    _reserve_groups([groups], using)
    writer = _RoomWriter(writing, room, changes, positions, groups)
    writer.collect(stored_outliers)
    # The message is sent under the room's lock, so no other transaction stores an event in this room between the reservation and
    # the commit.
    (position,) = append_facts(registry.get(EVENTS.name), writing.facts, using, writing.statements())
    positions[changes.events[0].event_id] = position
    writer.finish(using)
    append_invalidations(writing.rows.stale, using)
    return positions


def _reserve_positions(
    rooms: Sequence[tuple[StoredRoom, RoomChanges]], groups: Sequence[_Groups], using: str
) -> tuple[str, dict[str, int]]:
    live: list[str] = []
    old: list[str] = []
    for room, changes in rooms:
        # In the order of their own negative positions, if these are known (``Incoming.backfilled_at``). The sort is stable:
        # without them the oldest event gets the lowest position.
        backfilled = [event for event in reversed(changes.events) if event.backfilled]
        old += [e.event_id for e in sorted(backfilled, key=lambda event: event.stream_ordering or 0, reverse=True)]
        live += [event.event_id for event in changes.events if not event.backfilled]
        if changes.needs_own_position:  # a state change without a live event is under the room ID
            live.append(room.room_id)
    counts = [(registry.get(stream.name), len(ids)) for stream, ids in ((EVENTS, live), (BACKFILL, old)) if ids]
    if not counts:  # only stored events have got their states
        _reserve_groups(groups, using)
        return writer_name(), {}
    new_groups = sum(len(groups_of.new) for groups_of in groups)
    writer, reserved = reserve_ids(counts, using, [(GROUP_SEQUENCE, new_groups)] if new_groups else [])
    group_ids = iter(reserved.pop() if new_groups else ())
    for groups_of in groups:
        groups_of.set_ids(group_ids)
    found = dict(zip(live, reserved[0], strict=True)) if live else {}
    found.update((event_id, -position) for event_id, position in zip(old, reserved[-1], strict=False))
    return writer, found


def _reserve_groups(groups: Sequence[_Groups], using: str) -> None:
    if count := sum(len(groups_of.new) for groups_of in groups):
        with connections[using].cursor() as cursor:
            ids = iter(reserve_group_ids(cursor, count))
        for groups_of in groups:
            groups_of.set_ids(ids)


@cache
def _of_event() -> dict[str, Any]:
    # attribute -> default, of the fields that are neither the position nor in ``EVENT_COLUMNS``
    return {f.attname: f.get_default() for f in Event._meta.concrete_fields if f.attname not in _FACT_ATTRIBUTES}


def _fact(position: int | None, row: Sequence[object]) -> Event:
    # As ``Event(…)`` makes it, which takes six times as long: it sends signals and sets each attribute by itself.
    event = Event.__new__(Event)
    event.__dict__.update(_of_event(), _state=ModelState())
    event.__dict__.update(zip(_FACT_ATTRIBUTES, (position, *row), strict=True))
    return event


class _Groups:
    # New state groups of events. Groups of intermediate current states, which no event has, are not stored.
    def __init__(self, stored: StoredRoom, changes: RoomChanges) -> None:
        events = [event.event_id for event in (*changes.events, *changes.filled.events) if not event.outlier]
        self._stored = stored
        self._after = {event_id: stored.after[event_id] for event_id in events if event_id in stored.after}
        needed = set(self._after.values()) - stored.ids.keys()
        self.new = sorted(stored.builder.kept(needed) - stored.ids.keys()) if needed else []
        changes.reused_groups = len(self._after) - len(needed)
        self._ids = dict(stored.ids)

    def set_ids(self, ids: Iterator[int]) -> None:
        """Gives the new groups their IDs, the next of ``ids``."""
        # IDs are reserved under the room's lock, under which also the last group of each chain was read (``is_tip``). Without the
        # lock: A and B both find group 5 to be the last of its chain, A appends group 6 to the chain and B group 7. Readers of 7
        # would then apply the delta of 6, too.
        self._ids.update((number, next(ids)) for number in self.new)

    def of_events(self) -> dict[str, int]:
        return {event_id: self._ids[number] for event_id, number in self._after.items()}

    def add_rows(self, rows: RoomRows, room_id: str) -> list[tuple[bool, int]]:
        # Returns (is it stored in full, its hops) for each group. The next batch is likely to need the state of the
        # last.
        stored, new, ids = self._stored, self.new, self._ids
        if stored.resolved:
            stored.cache_resolved(ids)
        if not new:
            return []
        rows.add_groups(room_id, stored.builder, new, ids, {**ids, **stored.chains})
        stored.cache_state(ids[new[-1]], new[-1])
        return [(prev is None, hops) for _, prev, _, hops, *_ in stored.builder.group_rows(new)]


class _RoomWriter:
    def __init__(
        self,
        writing: _Writing,
        stored: StoredRoom,
        changes: RoomChanges,
        positions: dict[str, int],
        groups: _Groups,
    ) -> None:
        self._rows, self._facts = writing.rows, writing.facts
        self._room, self._stored = stored.room, stored
        self._changes = changes
        self._positions = positions
        self._groups = groups
        self._graph = [event for event in changes.events if not event.outlier]

    def collect(self, stored_outliers: Collection[str]) -> None:
        changes, rows = self._changes, self._rows
        self._extremities()
        self._events(stored_outliers)
        changes.new_groups = self._groups.add_rows(rows, self.room_id)
        self._state_changes()
        self._ranges()
        gaps = self._stored.reading.gaps
        if gaps and (closed := sorted(gaps.intersection(event.event_id for event in self._graph))):
            rows.remove("events_backwardextremity", *((self.room_id, event_id) for event_id in closed))
        self._current_state()
        if changes.filled.rejected:
            rows.unflag_redacted(changes.filled.rejected)
        if changes.redacted:
            rows.flag_redacted(changes.redacted)
        if (users := self._changed_members()) is not None:
            rows.drop_state(self.room_id, users)
        self._room_row()

    @property
    def room_id(self) -> str:
        return self._room.room_id

    def _changed_members(self) -> list[str] | None:
        """Returns the users whose membership in the current state changes, or None if that state does not change.

        Every process that keeps what depends on the state, and every worker of version 1.43, reads the row of
        ``caches`` that is written with each change.
        """
        changes, known = self._changes, self._stored.events
        if changes.loses_state:
            return [*self._stored.members()]
        changed = [(kind, key) for _, kind, key, _, _ in changes.state_changes]
        # Redactions that take effect now, and those that lost their effect.
        targets = [*changes.redacted]
        if rejected := set(changes.filled.rejected):
            targets += [event.redacts or "" for event in changes.filled.events if event.event_id in rejected]
        found = (event for event_id in targets if (event := known.get(event_id)) is not None)
        changed += [(event.type, event.state_key) for event in found if event.state_key is not None]
        return sorted({user for entry in changed for user in users_of(*entry)}) if changed else None

    # --- removed and added rows ----------------------------------------------------------------------
    def _extremities(self) -> None:
        removed, new, rows = self._changes.removed_extremities, self._changes.new_extremities, self._rows
        # An updated row takes the place of a removed row and an added row.
        for old, event_id in zip(removed, new, strict=False):
            rows.change("events_forwardextremity", old, event_id=event_id)
        rows.remove("events_forwardextremity", *((old,) for old in removed[len(new) :]))
        for event_id in new[len(removed) :]:
            rows.add("events_forwardextremity", event_id, self.room_id)

    def _events(self, stored_outliers: Collection[str]) -> None:
        rows, groups, redacted = self._rows, self._groups.of_events(), self._changes.redacted
        for event in self._changes.filled.events:
            group, reason = groups[event.event_id], event.rejected_reason
            rows.change(
                "events_event", event.event_id, state_group=group, state_unresolved=False, rejected_reason=reason
            )
        for event in self._changes.events:
            row = event_row(event, redacted.get(event.event_id), groups.get(event.event_id))
            place = self._positions.get(event.event_id)  # None: assigned when it is inserted (``_write_lone``)
            self._facts.append(_fact(place, row))
            if event.event_id in stored_outliers:  # before its new row: the event ID is unique
                rows.remove("events_event", (event.event_id,))
                continue
            rows.add("events_eventjson", event.event_id, event.room_version, event.json)
            if event.state_key is not None:
                rows.add("events_eventauth", event.event_id, list(event.auth_event_ids))
        for event in self._graph:
            for prev in event.prev_event_ids:
                rows.add("events_eventedge", event.event_id, prev)

    def _state_changes(self) -> None:
        events = self._changes.events
        # A number behind the events stands for a state change without a live event.
        self._facts += [
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
        if not missing:
            return
        with connections[using].cursor() as cursor:
            new, above, rows = open_gaps(cursor, self.room_id, missing), set[int](), RoomRows()
            # At the first live event above each new backward extremity. A sync with a token below it reports the gap.
            for event in self._graph[self._changes.backfilled :]:
                if below := new.intersection(event.prev_event_ids):
                    above.add(self._positions[event.event_id])
                    new -= below
            for position in sorted(above):
                rows.add("events_timelinegap", self.room_id, position, writer_name())
            write(cursor, rows)

    def _current_state(self) -> None:
        changes, rows = self._changes, self._rows
        if changes.loses_state:
            rows.clear(self.room_id, "events_currentstate")
        if changes.current_unresolved:
            return
        for key, event_id in {(kind, key): new for _, kind, key, new, _ in changes.state_changes}.items():
            if event_id is None:
                rows.remove("events_currentstate", (self.room_id, *key))
            else:
                found = self._stored.events.get(event_id)
                rows.add("events_currentstate", self.room_id, *key, event_id, found.membership if found else None)

    def _ranges(self) -> None:
        changes, rows, room_id = self._changes, self._rows, self.room_id
        if changes.visibility_unresolved:
            if not self._room.visibility_unresolved:
                rows.clear(room_id, "events_eventvisibility")
            return
        if changes.closed:
            rows.end_ranges(room_id, ((user, kind, self._place(last)) for user, kind, last in changes.closed))
        if changes.uncut:
            rows.uncut(room_id, changes.uncut)
        if changes.now_shown:
            rows.show(changes.now_shown)
        for row in changes.ranges:
            last = None if row.last is None else self._place(row.last)
            rows.add("events_eventvisibility", room_id, row.user_id, row.kind, self._place(row.first), last)

    def _place(self, number: int) -> int:
        # -1: the last accepted live event before the batch, or 0, which is below all live events
        return (
            self._positions[self._changes.events[number].event_id] if number >= 0 else self._changes.last_position or 0
        )

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
            self._rows.change("events_room", room.room_id, **new)
