"""Reads the stored part of a room that a batch of new events needs, once, under the room's lock.

The content of an event and the state of a group never change. So every process caches the contents and states that it
used last. Everything that can change is read under the lock: which events exist, their verdicts, and their groups. So
no other process can make the cached values wrong. Of a large state only those entries are read that a batch asks for
(``state.groups.layered``). Assumes the caller's transaction with the room's row locked.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import connections
from msgspec import Struct
from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.models import CurrentState
from events.persist.closing_cycles import closing_a_cycle
from events.persist.lock_and_read import EventFacts, GroupFacts, RoomFacts, RoomReading
from events.persist.naming_sql import NAMING_PER_EVENT
from events.persist.state_cache import StateCache
from events.room.extremities import ForwardExtremities
from events.room.graph import Node
from events.room.state_assignment import RoomStates, Stored
from events.stored_states import parsed_events
from events.visibility.viewer import HISTORY_VISIBILITY
from state.groups.deltas import HOPS_LIMIT, GroupBuilder, StateKey, StoredGroup
from state.groups.layered import LayeredState, layered_on_base, load, parts, stored_as
from state.resolution.local_difference import Naming
from state.rules.auth_selection import auth_keys, state_key_of
from state.rules.room_versions import room_version
from state.store import changes_from, entries, full_state
from streams.core.bounded import SharedCache
from streams.db.driver import rows_of_repeated

_MOST_EVENTS = 20_000
_MOST_ENTRIES = 500_000
_MOST_RESOLVED = 20_000
_MOST_ROOMS = 20_000
_MOST_READ_WHOLE = 1_000
"""The most entries of a state that is read whole. Of larger ones entries are read by key."""

_Changed = tuple[int, Mapping[StateKey, "str | None"]]
_events: SharedCache[object, ParsedEvent] = SharedCache(_MOST_EVENTS)
_states = StateCache(_MOST_ENTRIES)
#: Room -> its group whose state was added last to ``_states``. Other states of the room are read as differences to it.
_latest: SharedCache[object, int] = SharedCache(_MOST_ROOMS)
#: Set of group IDs -> the ID of the stored group to which they resolve. If no event has the resolved state, there is no such
#: group. Then the value has the ID of one group of the set, and the changes from its state to the resolved state.
_resolved: SharedCache[object, int | _Changed] = SharedCache(
    _MOST_RESOLVED, lambda found: 1 if isinstance(found, int) else 1 + len(found[1])
)


def clear_caches() -> None:
    """Clears the caches of this process: for tests, and after rows were changed from outside."""
    _events.clear()
    _states.clear()
    _latest.clear()
    _resolved.clear()


_FACTS = """
SELECT event_id, outlier, rejected_reason, soft_failed, state_group, room_id, redacted_by IS NOT NULL
FROM events_event WHERE event_id = ANY(%s)
"""
_MEMBERSHIPS = "SELECT event_id, membership FROM events_event WHERE event_id = ANY(%s::text[])"
_NO_CHANGE = "e.state_key IS NULL OR e.rejected_reason IS NOT NULL"
#: Selects the groups after events, with the columns that a builder needs. Every group has delta rows, so these rows show which
#: group is the last of its chain.
_GROUPS = """
SELECT after.event_id, g.id, g.chain, hops, keys, rows_to_read, NOT EXISTS (
    SELECT FROM state_stategroupdelta d WHERE d.chain = g.chain AND d.state_group > g.id
)
FROM events_event after JOIN state_stategroup g ON g.id = after.state_group
WHERE after.event_id = ANY(%s::text[]) AND after.room_id = %s::text ORDER BY g.id
"""
_GROUP = """
SELECT g.chain, hops, keys, rows_to_read, NOT EXISTS (
    SELECT FROM state_stategroupdelta d WHERE d.chain = g.chain AND d.state_group > g.id
)
FROM state_stategroup g WHERE g.id = %s
"""
#: Selects the groups at which the chains below a group end.
_GROUPS_BELOW = """
WITH RECURSIVE below AS (
    SELECT head.prev_group AS id FROM state_stategroup own JOIN state_stategroup head ON head.id = own.chain WHERE own.id = %s
    UNION ALL
    SELECT head.prev_group FROM below JOIN state_stategroup own USING (id) JOIN state_stategroup head ON head.id = own.chain
)
SELECT g.id, g.chain, hops, keys, rows_to_read, NOT EXISTS (
    SELECT FROM state_stategroupdelta d WHERE d.chain = g.chain AND d.state_group > g.id
)
FROM below JOIN state_stategroup g USING (id)
"""
#: Selects the group before an event. For an accepted state event this is the group to which its own group is a delta
#: (``prev_group``). For any other event it is its own group.
_BEFORE = f"""
SELECT g.id, g.chain, g.hops, g.keys, g.rows_to_read, NOT EXISTS (
    SELECT FROM state_stategroupdelta d WHERE d.chain = g.chain AND d.state_group > g.id
)
FROM events_event e JOIN state_stategroup own ON own.id = e.state_group
JOIN state_stategroup g ON g.id = CASE WHEN {_NO_CHANGE} THEN own.id ELSE own.prev_group END
WHERE e.event_id = %s
"""
#: Selects the state events in the auth chains of some events, without these events themselves.
_AUTH_CHAIN = """
WITH RECURSIVE chain AS (
    SELECT unnest(auth_event_ids) AS event_id FROM events_eventauth WHERE event_id = ANY(%s)
    UNION
    SELECT unnest(auth.auth_event_ids) FROM chain JOIN events_eventauth auth USING (event_id)
) SELECT event_id FROM chain
"""
#: Selects the state events, of any room, that have one of some events as auth event (``events.persist.naming_sql``).
_NAMING = "SELECT named, naming, naming_type, naming_key, naming_room FROM events_naming(%s::text[])"
#: Selects events without a known state of their own, with their auth events: among some events, and among the auth events of
#: those that were found.
_WITHOUT_STATE = """
WITH RECURSIVE found AS (
    SELECT event_id FROM events_event WHERE event_id = ANY(%s) AND state_group IS NULL
    UNION
    SELECT e.event_id FROM found JOIN events_eventauth auth USING (event_id)
    CROSS JOIN unnest(auth.auth_event_ids) AS named (id) JOIN events_event e ON e.event_id = named.id
    WHERE e.state_group IS NULL
) SELECT event_id, auth_event_ids FROM (SELECT event_id FROM found LIMIT %s) AS found LEFT JOIN events_eventauth USING (event_id)
"""
#: Selects the edges from some events upwards, which continue through transparent events. An edge has three flags: the upper
#: event is accepted; it is live; it certainly reaches the lower event (``RoomStates.reached``).
_EDGE = f"""
SELECT edge.prev_event_id, edge.event_id,
    NOT e.soft_failed AND e.rejected_reason IS NULL AS accepted, e.stream_ordering > 0 AS live,
    coalesce(0 < below.stream_ordering AND below.stream_ordering < e.stream_ordering
        OR below.state_group = CASE WHEN {_NO_CHANGE} THEN own.id ELSE own.prev_group END, false) OR own.id IS NULL AS surely
"""
_BOTH_ENDS = """
JOIN events_event e ON e.event_id = edge.event_id AND e.room_id = %(room)s::text AND NOT e.outlier
LEFT JOIN state_stategroup own ON own.id = e.state_group
LEFT JOIN events_event below ON below.event_id = edge.prev_event_id AND below.room_id = %(room)s::text AND NOT below.outlier
"""
_ABOVE = f"""
WITH RECURSIVE up AS (
    {_EDGE} FROM events_eventedge edge {_BOTH_ENDS} WHERE edge.prev_event_id = ANY(%(below)s::text[])
    UNION
    {_EDGE} FROM up JOIN events_eventedge edge ON edge.prev_event_id = up.event_id {_BOTH_ENDS}
    WHERE NOT (up.accepted AND (up.live OR NOT %(through_old)s::boolean)) OR up.event_id = ANY(%(rejected)s::text[])
) SELECT prev_event_id, event_id, accepted, live, surely FROM up
"""
_LIVE = """
SELECT event_id FROM events_event WHERE event_id = ANY(%s) AND room_id = %s AND NOT outlier AND stream_ordering > 0
"""
_VERDICTS = """
SELECT event_id, NOT soft_failed AND rejected_reason IS NULL, stream_ordering > 0 FROM events_event
WHERE event_id = ANY(%s) AND room_id = %s AND NOT outlier ORDER BY event_id
"""
_EARLIER_REDACTIONS = """
SELECT event_id, redacts FROM events_event WHERE redacts = ANY(%s) AND room_id = %s ORDER BY stream_ordering
"""
#: Selects events without a state above some events, nearest first. It uses the index of edges, so the time is in proportion to
#: the result.
_UNRESOLVED_ABOVE = """
WITH RECURSIVE above AS (
    SELECT e.event_id, e.stream_ordering FROM events_eventedge edge JOIN events_event e USING (event_id)
    WHERE edge.prev_event_id = ANY(%(below)s) AND e.state_unresolved AND e.room_id = %(room)s
    UNION
    SELECT e.event_id, e.stream_ordering
    FROM above JOIN events_eventedge edge ON edge.prev_event_id = above.event_id
    JOIN events_event e ON e.event_id = edge.event_id
    WHERE e.state_unresolved AND e.room_id = %(room)s
) SELECT event_id, stream_ordering FROM above LIMIT %(most)s
"""
_PLACES = "SELECT event_id, stream_ordering FROM events_event WHERE event_id = ANY(%s) AND state_unresolved"
_REDACTED = """
SELECT event_id FROM events_event WHERE event_id = ANY(%s::text[]) AND redacted_by IS NOT NULL AND type = ANY(%s::text[])
"""


class StoredEvents(dict[str, ParsedEvent]):
    """A map of all stored events by ID, each read on first use.

    An event set in the map overrides the stored event.

    Cached content is used only in its own room and with the same content ``generation``, which changes when stored
    content of the room is rewritten.
    """

    def __init__(self, using: str, room_id: str = "", generation: int = 0, reading: RoomReading | None = None) -> None:
        super().__init__()
        self._using = using
        self._reading = reading if reading is not None else RoomReading()
        self.cache_key = using, room_id, generation
        self._absent: set[str] = set()

    def load(self, event_ids: Iterable[str]) -> None:
        asked, facts = self._reading.queried, self._reading.events
        wanted, missing = [], []
        for event_id in event_ids:
            if dict.__contains__(self, event_id) or event_id in self._absent:
                continue
            if event_id in asked and event_id not in facts:  # looked up under the lock, and not there
                self._absent.add(event_id)
                continue
            wanted.append(event_id)
        if not wanted:
            return
        found = _events.get_all([(self.cache_key, event_id) for event_id in wanted])
        for event_id, kept in zip(wanted, found, strict=True):
            if kept is None:
                missing.append(event_id)
            else:
                self[event_id] = _with_verdict(kept, facts[event_id]) if event_id in facts else kept
        if missing:
            self._read(list(dict.fromkeys(missing)))

    def _read(self, event_ids: Sequence[str]) -> None:
        known = self._reading.events
        if unknown := [event_id for event_id in event_ids if event_id not in known]:
            with connections[self._using].cursor() as cursor:
                cursor.execute(_FACTS, [unknown])
                known.update((event_id, EventFacts(*facts)) for event_id, *facts in cursor.fetchall())
            self._reading.queried.update(unknown)
        existing = [event_id for event_id in event_ids if event_id in known]
        parsed = parsed_events(existing, self._using)
        self._absent.update(event_ids)
        self._absent.difference_update(existing)
        for event_id in existing:
            # Without the JSON, which nothing here needs. The verdicts are those of the row, which was read under the lock.
            event = replace(parsed[event_id], json=b"", rejection_given=True, soft_failure_given=True)
            self[event_id] = event = _with_verdict(event, known[event_id])
            self._cache(event)

    def memberships(self, event_ids: Collection[str]) -> dict[str, str]:
        """Returns by ID what these events set memberships to. Of events that are not in memory, only this column is read."""
        found = {event_id: event for event_id in event_ids if (event := dict.get(self, event_id)) is not None}
        rest = [event_id for event_id in event_ids if event_id not in found]
        kept = _events.get_all([(self.cache_key, event_id) for event_id in rest])
        found.update((event.event_id, event) for event in kept if event is not None)
        memberships = {event_id: event.membership for event_id, event in found.items()}
        if unread := [event_id for event_id in rest if event_id not in found]:
            rows = rows_of_repeated(connections[self._using], _MEMBERSHIPS, [unread])
            memberships.update((event_id, membership) for event_id, membership in rows)
        return {event_id: membership or "leave" for event_id, membership in memberships.items()}

    def cache_new(self, event: ParsedEvent) -> None:
        """Caches a new event, to which later events are likely to refer. Called after the event was committed."""
        self._cache(replace(event, json=b"", stream_ordering=None, rejection_given=True, soft_failure_given=True))

    def _cache(self, event: ParsedEvent) -> None:
        if not event.outlier:  # an outlier may be stored again with better content
            _events.put((self.cache_key, event.event_id), event)

    def __missing__(self, event_id: str) -> ParsedEvent:
        self.load([event_id])
        found = super().get(event_id)
        if found is None:
            raise KeyError(event_id)
        return found

    def get(self, event_id: str, default: Any = None) -> Any:
        try:
            return self[event_id]
        except KeyError:
            return default

    def __contains__(self, event_id: object) -> bool:
        return self.get(str(event_id)) is not None


def _with_verdict(event: ParsedEvent, facts: EventFacts) -> ParsedEvent:
    stored = facts.outlier, facts.rejected_reason, facts.soft_failed
    if (event.outlier, event.rejected_reason, event.soft_failed) == stored:
        return event
    return replace(event, outlier=stored[0], rejected_reason=stored[1], soft_failed=stored[2])


@dataclass(frozen=True, slots=True)
class _StoredEntries:
    # Reads the state of a group, for ``state.groups.layered``. The group is that of an event, under the room's lock.
    group: int
    using: str

    def entries(self, keys: Collection[StateKey], /) -> Mapping[StateKey, str]:
        return entries([self.group], keys, self.using, planned_once=True)[self.group]

    def everything(self) -> dict[StateKey, str]:
        return full_state(self.group, self.using)


class StoredRoom(Struct, dict=True, weakref=True, eq=False):
    """One room under its lock: its row, its events, its forward extremities, and the groups that a batch builds on.

    Groups have numbers in ``builder``. ``after`` maps an event ID to the number of the group after the event. ``ids``
    maps the number of a stored group to its ID. A group is *adopted* when it was read and has a number.
    """

    room: RoomFacts
    using: str
    reading: RoomReading
    extremities: list[str] = []
    after: dict[str, int] = {}
    ids: dict[int, int] = {}
    chains: dict[int, int] = {}
    """Number of an adopted group -> ID of its chain."""
    resolved: dict[frozenset[int], int] = {}
    """Numbers of groups -> number of the group that they resolve to."""
    resolutions_outdated: bool = False
    """True if cached resolutions may be outdated."""
    batch: Sequence[ParsedEvent] = ()
    """The new events."""
    _numbers: dict[int, int] = {}
    _loaded: dict[int, Mapping[StateKey, str]] = {}
    """ID of a group -> its state."""

    @cached_property
    def events(self) -> StoredEvents:
        return StoredEvents(self.using, self.room_id, self.room.content_generation, self.reading)

    @cached_property
    def builder(self) -> GroupBuilder:
        # A weak reference: only the garbage collector could free two objects that refer to each other.
        stored_below = weakref.WeakMethod(self._stored_below)
        return GroupBuilder(lambda number: below(number) if (below := stored_below()) is not None else None)

    @property
    def room_id(self) -> str:
        return self.room.room_id

    def read(self, batch: Sequence[ParsedEvent]) -> None:
        """Loads the events that the batch refers to, and the groups after prev events and extremities."""
        self.batch = batch
        self.extremities = list(self.reading.extremities.get(self.room_id, ()))
        batch_ids = {event.event_id for event in batch}
        prevs = {prev for event in batch for prev in event.prev_event_ids} - batch_ids
        self.adopt_after({*prevs, *self.extremities})
        auths = [other for event in batch for other in event.auth_event_ids if other not in batch_ids]
        self.events.load([*prevs, *auths])
        self._load_entries([event for event in batch if not event.outlier], auths)

    def _load_entries(self, events: Sequence[ParsedEvent], auths: Iterable[str]) -> None:
        # The entries of which the batch is going to ask: by one query, and not by one for each.
        if not any(isinstance(state, LayeredState) and state.reads for state in self._loaded.values()):
            return
        keys = {HISTORY_VISIBILITY}
        keys.update(key for event in events for key in auth_keys(event, room_version(event.room_version)))
        keys.update(state_key_of(event) for event in events if event.state_key is not None)
        named = (dict.get(self.events, event_id) for event_id in auths)
        keys.update(state_key_of(event) for event in named if event is not None)
        for state in self._loaded.values():
            load(state, keys)

    def adopt_after(self, event_ids: Collection[str]) -> None:
        """Reads the state groups after these events, and adds them to ``builder`` and ``after``.

        Skips events of other rooms.
        """
        missing = []
        found: list[tuple[str, int, GroupFacts]] = []
        for event_id in event_ids:
            if event_id in self.after:
                continue
            facts = self.reading.events.get(event_id)
            if facts is not None and facts.room_id != self.room_id:
                continue
            if facts is not None and facts.state_group in self.reading.groups:
                found.append((event_id, facts.state_group, self.reading.groups[facts.state_group]))
            elif event_id not in self.reading.queried or (facts is not None and facts.state_group is not None):
                missing.append(event_id)
        if missing:
            rows = rows_of_repeated(connections[self.using], _GROUPS, [missing, self.room_id])
            found += [(event_id, group, GroupFacts(*columns)) for event_id, group, *columns in rows]
        self._load_states({group: facts.keys for _, group, facts in found})
        for event_id, group, columns in found:
            self.after[event_id] = self._number(group, columns)

    def continue_group(self, event_ids: Iterable[str], group: int) -> None:
        """Lets all these events have a stored group, of which nothing is read. No other group may be adopted."""
        self.after, self.ids = dict.fromkeys(event_ids, 0), {0: group}

    def adopt_before(self, event_id: str) -> int | None:
        """Returns the builder's number for the state group before a stored event, or None."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(_BEFORE, [event_id])
            found = cursor.fetchone()
            if found is None:
                return None
            group, *facts = found
        return self._number(group, GroupFacts(*facts))

    def _number(self, group: int, facts: GroupFacts) -> int:
        # reads the group and adds it to the builder on first use
        if group not in self._numbers:
            self._load_states({group: facts.keys})
            stored = StoredGroup(self._loaded[group], facts.hops, facts.keys, facts.rows_to_read, facts.is_tip)
            number = self._numbers[group] = self.builder.adopt(stored)
            self.ids[number], self.chains[number] = group, facts.chain
        return self._numbers[group]

    def _stored_below(self, number: int) -> int | None:
        # Of the groups below an adopted one, that from which the fewest rows lead to its state, for each chain that is saved.
        with connections[self.using].cursor() as cursor:
            cursor.execute(_GROUPS_BELOW, [self.ids[number]])
            found = [(group, GroupFacts(*facts)) for group, *facts in cursor.fetchall()]
        rows = self.builder.rows_to_read(number)
        found = [(group, facts) for group, facts in found if facts.hops < HOPS_LIMIT]
        if not found:
            return None
        return self._number(*min(found, key=lambda pair: (rows - pair[1].rows_to_read) / (HOPS_LIMIT - pair[1].hops)))

    def _load_states(self, sizes: Mapping[int, int]) -> None:
        # ``sizes`` maps IDs of groups to numbers of entries. States that differ little share their entries, so that they are
        # compared by their changes, and many forks of a large room take little memory.
        wanted = sorted(sizes.keys() - self._loaded.keys())
        if not wanted:
            return
        # The key needs no generation: a stored group never changes its state, and its ID is never used again.
        found = _states.get_all([(self.using, group) for group in wanted])
        cached = {group: state for group, state in zip(wanted, found, strict=True) if state is not None}
        bases = [id(parts(state)[0]) for state in (self._loaded or cached).values()]
        shared = max(dict.fromkeys(bases), key=bases.count, default=None)
        self._loaded |= {g: state for g, state in cached.items() if id(parts(state)[0]) == shared}
        missing = [group for group in wanted if group not in self._loaded]
        if not missing:
            return
        known, near = next(iter(self._loaded.items()), (_latest.get((self.using, self.room_id)), None))
        near = _states.get((self.using, known)) if near is None else near
        changes = changes_from(known, missing, self.using) if known is not None and near is not None else {}
        if known is None or near is None or not (changes or self._loaded):  # the group may have been deleted since
            known = missing.pop()
            near = self._read_state(known, sizes[known])
            self._cache(known, near)
            changes = changes_from(known, missing, self.using) if missing else {}
        load(near, {key for some in changes.values() for key in some})
        for group in missing:
            if group in changes:
                state = layered_on_base(near, changes[group], _StoredEntries(group, self.using))
            else:
                state = cached[group] if group in cached else self._read_state(group, sizes[group])
            self._cache(group, state)

    def _read_state(self, group: int, size: int) -> Mapping[StateKey, str]:
        if size <= _MOST_READ_WHOLE:
            return full_state(group, self.using)
        return LayeredState({}, {}, _StoredEntries(group, self.using))

    def _cache(self, group: int, state: Mapping[StateKey, str]) -> None:
        self._loaded[group] = state
        _states.put((self.using, group), state)
        _latest.put((self.using, self.room_id), group)

    def cache_state(self, group: int, number: int) -> None:
        # This is before the commit. If the transaction is rolled back, the state stays in the cache, but no event gets this
        # group: its ID is never used again. Differences to it are not found either, so other states are then read in full.
        state = stored_as(self.builder.shared(number), _StoredEntries(group, self.using))
        _states.put((self.using, group), state)
        _latest.put((self.using, self.room_id), group)

    def in_graph(self, event_id: str) -> bool:
        found = dict.get(self.events, event_id) or self.reading.events.get(event_id) or self.events.get(event_id)
        return found is not None and not found.outlier and found.room_id == self.room_id

    def as_stored(self, create_event_id: str | None) -> Stored:
        create = self.events.get(create_event_id) if create_event_id is not None else None
        return Stored(
            self.events,
            create,
            self.builder,
            self.after,
            lambda states: self.load_chains({event_id for state in states for event_id in state.values()}),
            self._known_resolution,
            self.resolved,
            reads=_NearbyEvents(self),
            without_state=self._without_state,
        )

    def _known_resolution(self, groups: frozenset[int]) -> int | None:
        # So events with the same prev events share the resolved group, even in different batches. And in a room with
        # several forward extremities, a batch begins with the current state with which the batch before ended.
        return None if self.resolutions_outdated else self.resolved_before(groups)

    def resolved_before(self, groups: Set[int]) -> int | None:
        """Returns the group to which these groups resolved before this batch, if that is cached.

        The cached resolution is that of the present content generation. If the groups are those of the forward
        extremities, the stored current state is the same.
        """
        if not groups <= self.ids.keys():
            return None
        # The cache is filled before the commit. If that transaction was rolled back, the query below does not find its group.
        group = _resolved.get((self.events.cache_key, frozenset(self.ids[number] for number in groups)))
        if isinstance(group, tuple):
            base, changes = group
            return self.builder.add(self._numbers[base], changes) if base in self._numbers else None
        if group is None or group in self._numbers:
            return None if group is None else self._numbers[group]
        with connections[self.using].cursor() as cursor:
            cursor.execute(_GROUP, [group])
            facts = cursor.fetchone()
        return None if facts is None else self._number(group, GroupFacts(*facts))

    def cache_resolved(self, ids: Mapping[int, int]) -> None:
        """Caches the resolutions that this batch has computed. ``ids`` maps the builder's numbers to IDs of groups."""
        # If older resolutions are outdated, nothing is cached. The batch raises the room's content generation, which is part of
        # the key, so no later batch would find what is cached under the present one.
        for groups, outcome in self.resolved.items() if not self.resolutions_outdated else ():
            if not groups <= ids.keys():
                continue
            key = self.events.cache_key, frozenset(ids[number] for number in groups)
            base, changes = self.builder.step(outcome)
            if outcome in ids:
                _resolved.put(key, ids[outcome])
            elif base in groups:
                _resolved.put(key, (ids[base], changes))

    def load_chains(self, event_ids: Collection[str]) -> None:
        named = set(event_ids)
        below = list(named)
        while below:  # events of the batch are not stored yet, so the query does not find their auth events
            event = dict.get(self.events, below.pop())
            new = set(event.auth_event_ids) - named if event is not None else ()
            named.update(new)
            below += new
        with connections[self.using].cursor() as cursor:
            cursor.execute(_AUTH_CHAIN, [sorted(named)])
            named.update(row[0] for row in cursor.fetchall())
        self.events.load(sorted(named))

    def _without_state(self, event_ids: Collection[str], most: int | None) -> set[str] | None:
        # Among these events and in their auth chains. All, with their auth events, are loaded at once.
        with connections[self.using].cursor() as cursor:
            cursor.execute(_WITHOUT_STATE, [sorted(event_ids), None if most is None else most + 1])
            found: dict[str, Sequence[str] | None] = dict(cursor.fetchall())
        if most is not None and len(found) > most:
            return None
        self.events.load(sorted({*found, *(other for named in found.values() for other in named or ())}))
        return set(found)

    def live_among(self, event_ids: Collection[str]) -> set[str]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(_LIVE, [list(event_ids), self.room_id])
            return {event_id for (event_id,) in cursor.fetchall()}

    def redacted(self, event_ids: Collection[str], types: Sequence[str]) -> set[str]:
        """Returns those of the events that are redacted and of one of these types."""
        known = self.reading.events
        found = {event_id for event_id in event_ids if event_id in known and known[event_id].redacted}
        found = {event_id for event_id in found if self.events[event_id].type in types}
        unknown = [event_id for event_id in event_ids if event_id not in self.reading.queried]
        if unknown:
            rows = rows_of_repeated(connections[self.using], _REDACTED, [unknown, list(types)])
            found.update(event_id for (event_id,) in rows)
        return found

    def redactions_of(self, event_ids: Collection[str]) -> list[tuple[str, str]]:
        """Returns (redaction, its target) for the redactions of these events, in stream order."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(_EARLIER_REDACTIONS, [list(event_ids), self.room_id])
            return list(cursor.fetchall())

    def unresolved_above(self, below: Collection[str], seeds: Collection[str], most: int) -> dict[str, int]:
        """Returns event ID -> position of events without a state.

        These are the events in ``seeds`` without a state, and at most ``most`` events above these and above ``below``, on
        paths without a state.
        """
        with connections[self.using].cursor() as cursor:
            cursor.execute(_UNRESOLVED_ABOVE, {"below": [*below, *seeds], "room": self.room_id, "most": most})
            found: dict[str, int] = dict(cursor.fetchall())
            if seeds:
                cursor.execute(_PLACES, [list(seeds)])
                found |= dict(cursor.fetchall())
        return found

    def closing_a_cycle(self, batch: Sequence[ParsedEvent]) -> set[str]:
        return closing_a_cycle(self.room_id, batch, self.reading.above, self.events, self.using)

    def current_state(self) -> dict[StateKey, str]:
        rows = CurrentState.objects.using(self.using).filter(room_id=self.room_id)
        return {(kind, key): event_id for kind, key, event_id in rows.values_list("type", "state_key", "event_id")}

    def members(self, *memberships: str) -> dict[str, str]:
        """Returns ``{user: event ID}`` of those with one of these memberships in the stored current state, or with any."""
        found = CurrentState.objects.using(self.using).filter(room_id=self.room_id, type="m.room.member")
        found = found.filter(membership__in=memberships) if memberships else found
        return dict(found.values_list("state_key", "event_id"))

    # --- forward extremities -------------------------------------------------------------------------------------------------
    def extremities_before(
        self,
        batch: Sequence[ParsedEvent],
        states: RoomStates,
        rejected: Collection[str] = (),
        freed: Collection[str] | None = None,
    ) -> ForwardExtremities[str]:
        """Returns the room's forward extremities as they are before this batch, whose states are assigned.

        ``rejected`` has stored events that the batch rejects. ``freed``: prev events of events that were taken out of
        the graph; they may be extremities again. None: nothing was taken out.
        """
        found = _StoredExtremities(self, {event.event_id for event in batch}, states, set(rejected))
        found.replace_rejected(freed)
        return found


class _NearbyEvents:
    # for ``Reads`` of ``state.resolution.local_difference``
    def __init__(self, room: StoredRoom) -> None:
        self._room = room
        self.load = room.events.load
        self.load_chains = room.load_chains

    @cached_property
    def _naming_here(self) -> dict[str, list[str]]:
        # by the IDs of their auth events: those of the batch, which are not stored yet
        found: dict[str, list[str]] = {}
        for event in self._room.batch:
            for other in event.auth_event_ids if event.state_key is not None else ():
                found.setdefault(other, []).append(event.event_id)
        return found

    def naming(self, event_ids: Collection[str]) -> dict[str, Naming]:
        room = self._room
        rows: dict[str, list[tuple[str, StateKey, str | None]]] = {}
        found_rows = rows_of_repeated(connections[room.using], _NAMING, [sorted(event_ids)])
        for named, event_id, event_type, state_key, room_id in found_rows:
            rows.setdefault(named, []).append((event_id, (event_type, state_key), room_id))
        found = {}
        for named in event_ids:
            stored = rows.get(named, ())
            events = {event_id: key for event_id, key, room_id in stored if room_id == room.room_id}
            for event_id in self._naming_here.get(named, ()):
                if (event := room.events.get(event_id)) is not None:  # None: refused in the meantime
                    events[event_id] = event.type, event.state_key
            found[named] = Naming(list(events.items()), len(stored) < NAMING_PER_EVENT)
        return found


class _StoredExtremities(ForwardExtremities[str]):
    # Searches the stored events upwards from the forward extremities.
    def __init__(self, room: StoredRoom, batch_ids: Set[str], states: RoomStates, rejected: Set[str]) -> None:
        super().__init__(room.extremities, live=room.room_id in room.reading.latest)
        self._room, self._batch_ids, self._states, self._rejected = room, batch_ids, states, rejected
        self._stored = set(room.extremities) - rejected
        self._was_live = self.live
        self._transparent: dict[bool, dict[str, _Transparent]] = {}
        """``live`` -> transparent events by ID. If ``live`` is true, they include backfilled events."""
        self._reached_by: dict[str, Sequence[str]] = {}
        # Stored events may already reach events of the batch. ``above`` shows this for the events that were read under the
        # lock. For others, the stored events above them are always searched.
        if not batch_ids.isdisjoint(prev for prev, _ in room.reading.above) or not batch_ids <= room.reading.batch_ids:
            self._reached |= self._among_reached(batch_ids)

    def replace_rejected(self, freed: Collection[str] | None) -> None:
        # Each removed event is replaced by the nearest events below it that count and that no other event reaches.
        below = [event_id for event_id in self.current if event_id in self._rejected]
        covered = set[str]() if freed is None else self._among_reached(self.current)
        for event_id in {*below, *covered.intersection(self.current)}:
            del self.current[event_id]
        seen = set(below)
        prevs = {*(freed or ()), *self._below(below)} - seen
        # The walk goes down through events that are not reached. An event that counts becomes a forward extremity, and the walk
        # ends there. Otherwise it continues with the prev events.
        while prevs:
            seen |= prevs
            reached = self._among_reached(prevs)
            free = {event_id: counts for event_id, counts in self._verdicts(prevs) if event_id not in reached}
            new = [event_id for event_id, counts in free.items() if counts]
            self._room.adopt_after(new)
            self.current.update(dict.fromkeys(new))
            prevs = self._below(event_id for event_id, counts in free.items() if not counts) - seen

    def _below(self, event_ids: Iterable[str]) -> set[str]:
        found = list(event_ids)
        self._room.events.load(found)
        return {prev for event_id in found for prev in self._room.events[event_id].prev_event_ids}

    def _verdicts(self, event_ids: Collection[str]) -> list[tuple[str, bool]]:
        # pairs (event ID, true if the event counts) of the events in the graph
        with connections[self._room.using].cursor() as cursor:
            cursor.execute(_VERDICTS, [sorted(event_ids), self._room.room_id])
            rows = cursor.fetchall()
        return [(event_id, self._counts(event_id, accepted, live)) for event_id, accepted, live in rows]

    def find(self, event_ids: Collection[str]) -> list[Node[str]]:
        # New events, and stored transparent events that have a forward extremity or an event of the batch below them.
        found: list[Node[str]] = [self._room.events[event_id] for event_id in event_ids if event_id in self._batch_ids]
        live = self.live
        # Stored forward extremities count. But once the batch has brought the room's first live event, backfilled
        # forward extremities no longer count.
        known = self._batch_ids if live != self._was_live else self._batch_ids | self._stored
        others = [event_id for event_id in event_ids if event_id not in known]
        if others:
            if live not in self._transparent:
                self._transparent[live] = self._transparent_among({*self._stored, *self.current, *self._batch_ids})
            found += [self._transparent[live][event_id] for event_id in others if event_id in self._transparent[live]]
        return found

    def _transparent_among(self, starts: Collection[str]) -> dict[str, _Transparent]:
        below: dict[str, list[str]] = {}
        for prev, event_id, accepted, live in self._above(starts):
            if not self._counts(event_id, accepted, live):
                below.setdefault(event_id, []).append(prev)
        return {event_id: _Transparent(event_id, tuple(prevs)) for event_id, prevs in below.items()}

    def _among_reached(self, event_ids: Collection[str]) -> set[str]:
        # Of these events and of those on the paths above them, the ones that stored events above reach.
        below: dict[str, set[str]] = {}
        stack = []
        for prev, event_id, accepted, live in self._above(event_ids):
            below.setdefault(event_id, set()).add(prev)
            if self._counts(event_id, accepted, live):
                stack.append(event_id)
        found: set[str] = set()
        while stack:
            new = below.pop(stack.pop(), set()) - found
            found |= new
            stack += new
        return found

    def reaches(self, node: Node[str]) -> Sequence[str]:
        # all prev events, unless the batch gives the state before the event
        if node.event_id not in self._batch_ids or node.event_id not in self._states.on_given:
            return node.prev_event_ids
        batch_ids = {
            prev for prev in self._batch_ids & set(node.prev_event_ids) if not self._states.events[prev].backfilled
        }
        earlier = set() if node.backfilled else batch_ids | self._room.live_among(node.prev_event_ids)
        states = self._states
        return states.reached(node.prev_event_ids, states.before.get(node.event_id), earlier, states.after)

    def _reached_of(self, event_id: str) -> Sequence[str]:
        # The same for a stored event where the query of ``_above`` cannot tell (``surely`` is false), or the batch
        # gives a state.
        if event_id not in self._reached_by:
            room, states = self._room, self._states
            event = room.events[event_id]
            before = states.before[event_id] if event_id in states.before else room.adopt_before(event_id)
            room.adopt_after(event.prev_event_ids)
            self._reached_by[event_id] = states.reached(event.prev_event_ids, before, (), states.after)
        return self._reached_by[event_id]

    def _above(self, event_ids: Collection[str]) -> list[tuple[str, str, bool, bool]]:
        # (lower event, upper event, is the upper accepted, is it live) of all paths upwards from these events, each up
        # to an event that counts. Edges whose upper event does not reach the lower (``RoomStates.reached``) are left
        # out.
        values: dict[str, Any] = {
            "below": sorted(event_ids),
            "room": self._room.room_id,
            "through_old": self.live,
            "rejected": sorted(self._rejected),
        }
        edges = rows_of_repeated(connections[self._room.using], _ABOVE, values)
        given = self._states.on_given
        return [
            (prev, event_id, *verdict)
            for prev, event_id, *verdict, surely in edges
            if (surely and event_id not in given) or prev in self._reached_of(event_id)
        ]

    def _counts(self, event_id: str, accepted: bool, live: bool) -> bool:
        return accepted and event_id not in self._rejected and (live or not self.live)


@dataclass(frozen=True, slots=True)
class _Transparent:
    # A stored event that does not count. Only prev events on paths down to the searched events are listed.
    event_id: str
    prev_event_ids: tuple[str, ...]
    backfilled: bool = False
    outlier: bool = False
    rejected_reason: str | None = None
    soft_failed: bool = True
