"""Assigns state groups: the state before and after every event of a room (pure).

    create (1) <- join of Ada (2) <- message (2) <- topic (3)

A state event adds a group, any other event has the group before it. If the prev events of an event have different
states, these are resolved (``state.resolution.resolve``), once for each set of groups. If a prev event is missing, the
state before the event is unknown, and so are the states at all events above. Events are processed in causal order of
prev and auth events. Each is authorised in this order, because a rejected event does not change the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.format.signatures import signed_by
from events.room.event_auth import EventAuthorizer
from events.room.graph import Id, causal_order, cycles
from state.groups.deltas import GroupBuilder, StateKey
from state.resolution.auth_graph import AuthGraph
from state.resolution.local_difference import Reads
from state.resolution.nearby_groups import resolve_near
from state.resolution.resolve import resolve
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import AuthEvent
from state.rules.room_versions import RoomVersion, room_version

_Id_contra = TypeVar("_Id_contra", contravariant=True)
_MOST_UNPLACED = 2_000
"""The most events without a known state that are examined in the auth chain of an event. The room is locked meanwhile."""
CYCLE = "cycle: its prev or auth events lead back to it"
SECOND_CREATE = "create: the room has another create event"


def is_create(event: ParsedEvent) -> bool:
    """Returns true for an event that may begin a room: a create event that is not rejected."""
    if event.type != "m.room.create" or event.state_key != "" or event.prev_event_ids:
        return False
    if event.rejection_given:
        return event.rejected_reason is None
    return not event.auth_event_ids and AuthRules(room_version(event.room_version)).refusal(event, {}) is None


class GroupsAfter(Protocol[_Id_contra]):
    def get(self, event_id: _Id_contra, /) -> int | None: ...


class GroupState:
    """The state of a group, from which the auth rules read one key at a time."""

    def __init__(self, builder: GroupBuilder, group: int, events: Mapping[str, ParsedEvent]) -> None:
        self._builder = builder
        self.group = group
        self._events = events
        self._found: dict[StateKey, str | None] = {}

    def get(self, key: StateKey, /) -> AuthEvent | None:
        try:
            event_id = self._found[key]
        except KeyError:
            event_id = self._found[key] = self._builder.lookup(self.group, key)
        try:
            return None if event_id is None else self._events[event_id]
        except KeyError:
            return None

    def at(self, group: int) -> GroupState:
        """Returns the state of another group. If that is a delta to this one, what was read of this one moves there."""
        state = GroupState(self._builder, group, self._events)
        below, changes = self._builder.step(group)
        if below == self.group:
            state._found, self._found = self._found, {}
            state._found.update(changes)
        return state


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored part of a room that a batch of events continues.

    * ``events`` finds every stored event of the room.
    * ``after`` has the adopted groups of the events that the batch refers to.
    * ``prepare`` is called with states before they are resolved, so that their events can be read in one query.
    * ``known_resolution`` returns the known resolution of some groups, and ``resolved`` collects the resolutions of this batch.
    * ``from_dump``: see ``EventAuthorizer``. Otherwise an event without auth events is rejected, as servers do.
    * ``whole``: every event of the room is in memory. Otherwise ``reads`` reads the stored events that are needed to
      resolve groups by their differences. Without ``reads``, full states are resolved.
    * ``without_state`` returns the events without a known state of their own, among the given events and in their auth
      chains, or None if there are more than its second argument. If it is given, the auth chain of an event must be
      complete before the event gets a state (``RoomStates.unproven``).
    """

    events: MutableMapping[str, ParsedEvent]
    create: ParsedEvent | None
    builder: GroupBuilder
    after: dict[str, int]
    prepare: Callable[[Sequence[Mapping[StateKey, str]]], None]
    known_resolution: Callable[[frozenset[int]], int | None] = lambda _groups: None
    resolved: dict[frozenset[int], int] = field(default_factory=dict)
    from_dump: bool = False
    whole: bool = False
    reads: Reads | None = None
    without_state: Callable[[Collection[str], int | None], Collection[str] | None] | None = None


class RoomStates:
    """The states of one room. ``events`` has every event by its ID, after ``assign`` with its verdict."""

    def __init__(self, version: RoomVersion, events: Sequence[ParsedEvent], stored: Stored | None = None) -> None:
        self.version = version
        self._stored = stored
        self.events: MutableMapping[str, ParsedEvent] = stored.events if stored is not None else {}
        self.events.update((event.event_id, event) for event in events)
        self.create = stored.create if stored is not None else None
        if self.create is None:
            self.create = next((event for event in events if not event.outlier and is_create(event)), None)
        self.builder = stored.builder if stored is not None else GroupBuilder()
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = stored.after if stored is not None else {}
        self.rules = AuthRules(version, signed_by)
        self.event_auth = EventAuthorizer(
            self.rules, self.events, self.create, from_dump=stored is None or stored.from_dump
        )
        self.given: dict[str, Mapping[StateKey, str]] = {}
        """States before events that other servers gave. They are used if prev events, or their states, are missing."""
        self.unplaced = {event.event_id for event in events}
        """The events of the batch, and the stored events without a known state of their own.

        Stored ones are added by ``find_unplaced``."""
        self._searched: set[str] = set()
        self._too_many: set[str] = set()
        self._unsearched = events
        self.accepts_unproven = stored is None or stored.without_state is None
        """True if an event gets a state even though its auth chain is incomplete, as in imports."""
        self.unproven: dict[str, list[str]] = {}
        """Accepted events that got no state -> their auth events that are missing, not allowed, or lack auth events."""
        self._trusted: dict[str, bool] = {}
        self.on_given: set[str] = set()
        """Events for which the given state was used as the state before them."""
        self.bases: Sequence[int] = ()
        """Groups whose states probably differ little from a given state."""
        self._resolved = stored.resolved if stored is not None else {}
        self._whole = stored is None or stored.whole
        self._reads = stored.reads if stored is not None else None
        self._last_state: GroupState | None = None

    @cached_property
    def auth_graph(self) -> AuthGraph:
        return AuthGraph(self.events, self.version, self.create.event_id if self.create is not None else None)

    def assign(self, events: Sequence[ParsedEvent]) -> None:
        """Authorises all events, and assigns state groups to events in the graph. Events on a cycle are rejected."""
        self._trusted.clear()  # an event that was missing, or had no state, may have a state now
        also = {event_id: state.values() for event_id, state in self.given.items()}
        order, left = causal_order(events, auth=True, also=also)
        self.walk(events[number] for number in order)
        # Events on a cycle have no causal order, so they are rejected without a check. The events above the cycle have an order
        # only without them, and are checked afterwards.
        if left:
            for number in cycles(events, left, auth=True, also=also):
                self.reject(events[number], CYCLE)
            above = [events[number] for number in left if self.events[events[number].event_id].rejected_reason != CYCLE]
            self.walk(above[number] for number in causal_order(above, auth=True, also=also)[0])

    def walk(self, events: Iterable[ParsedEvent]) -> None:
        """Does the same as ``assign``, for events that are already in causal order."""
        for event in events:
            # Only state events take part in resolutions, where their rank is needed. In a batch they are ranked at that time:
            # their auth chains are stored, perhaps long, and would have to be read now.
            if self._whole and event.state_key is not None:
                self.auth_graph.rank(event.event_id)
            self._assign(event)

    def reject(self, event: ParsedEvent, reason: str) -> None:
        self.events[event.event_id] = replace(event, rejected_reason=reason, rejection_given=True)

    def state(self, group: int) -> GroupState:
        last = self._last_state
        if last is None or last.group != group:  # most events have the state of the event before
            last = self._last_state = (
                last.at(group) if last is not None else GroupState(self.builder, group, self.events)
            )
        return last

    def merged(self, groups: Iterable[int | None]) -> int | None:
        """Returns the group to which ``groups`` resolve, or None if there are none or one is unknown (None)."""
        wanted = frozenset(groups)
        if len(wanted) < 2:
            return next(iter(wanted), None)
        distinct = {group for group in wanted if group is not None}
        if len(distinct) < len(wanted):
            return None
        resolvable = frozenset(distinct)
        if resolvable not in self._resolved:
            known = self._stored.known_resolution(resolvable) if self._stored is not None else None
            self._resolved[resolvable] = self._resolve(sorted(distinct)) if known is None else known
        return self._resolved[resolvable]

    def reached(
        self, prevs: Sequence[Id], before: int | None, earlier: Container[Id], after: GroupsAfter[Id]
    ) -> Sequence[Id]:
        """Returns the prev events that an event *reaches*: those whose states are part of the state before the event.

        ``before`` is the group of that state, and ``after`` maps events to the groups after them. If ``before`` follows
        from the prev events, or is not known, all are reached. If another server gave it, it may contradict the states
        after the prev events. Then those in ``earlier``, which were stored before the event, are reached. A later one is
        reached only if the state after it, or the resolved state after all known prev events, equals ``before``.

        This prevents an attack. A server sends an event above a gap, with an old state, and withholds the events in the
        gap. Later it sends the withheld events, whose prev edges lead down to the forward extremities. If the first
        event reached the withheld events, the room would go back to the old state.
        """
        late = [prev for prev in prevs if prev not in earlier]
        if before is None or not late:
            return prevs
        known = {prev: group for prev in prevs if (group := after.get(prev)) is not None}
        differing = {prev for prev in late if not self._are_equal(known.get(prev), before)}
        if differing and self._are_equal(self.merged(known.values()), before):
            differing.difference_update(known)
        return [prev for prev in prevs if prev not in differing]

    def _are_equal(self, group: int | None, other: int) -> bool:
        return group is not None and (group == other or not self.builder.changes_between(group, other))

    def _assign(self, event: ParsedEvent) -> None:
        if event.outlier:
            self._authorise(event, None)
            return
        if is_create(event):
            if self.create is None or event.event_id != self.create.event_id:
                self.reject(event, SECOND_CREATE)
            elif self._authorise(event, None) is None:
                self.after[event.event_id] = self.builder.add_full({(event.type, ""): event.event_id})
            return
        before = self._before(event)
        verdict = self._authorise(event, before)
        if before is None:
            return
        if verdict is None and (untrusted := self._untrusted_auth_events(event, before)):
            self.unproven[event.event_id] = untrusted
            return
        self.before[event.event_id] = before
        # At this point of the causal order: events that are authorised after this one see the redacted form of its target.
        if event.redacts is not None and verdict is None:
            self.event_auth.record_redaction(event, self.state(before))
        if event.state_key is None or verdict is not None:
            self.after[event.event_id] = before
        else:
            self.after[event.event_id] = self.builder.add(before, {(event.type, event.state_key): event.event_id})

    def _after_prevs(self, event: ParsedEvent) -> int | None:
        prevs = event.prev_event_ids
        if len(prevs) == 1:
            return self.after.get(prevs[0])
        return self.merged(self.after.get(prev) for prev in prevs)

    def _before(self, event: ParsedEvent) -> int | None:
        # A given state stands for those after the missing prev events, and is resolved with the others. Otherwise a
        # server could send an event with an old state, on top of an extremity and of an event that it withholds, and
        # the room would go back to the old state.
        known = self._after_prevs(event)
        if known is not None or event.event_id not in self.given or not event.prev_event_ids:
            return known
        given = self.given[event.event_id]
        # Weighed only now, when the entries that are in the same batch have their verdicts: ``assign`` has put them before
        # this event (``also``).
        self._decide_trust(given.values())
        state = {key: entry for key, entry in given.items() if self._trusted[entry]}
        self.on_given.add(event.event_id)
        given_group = self.builder.add_nearest({base: self.builder.expand(base) for base in self.bases}, state)
        return self.merged([given_group, *(self.after[prev] for prev in event.prev_event_ids if prev in self.after)])

    def _untrusted_auth_events(self, event: ParsedEvent, before: int) -> list[str]:
        # Entries of the state before the event are trusted. Without this check, a verdict and the states above would
        # depend on whether a missing auth event arrives before the event or after it, and a malicious server could
        # choose this order for each server to which it sends.
        if event.rejection_given or self.accepts_unproven:
            return []
        state = self.state(before)
        others = [other for other in event.auth_event_ids if not self._is_entry(state, other)]
        if others and not self.find_unplaced(others, _MOST_UNPLACED):
            return others
        self._decide_trust(others)
        return [other for other in others if not self._trusted.get(other, False)]

    def find_unplaced(self, event_ids: Iterable[str], most: int | None = None) -> bool:
        """Adds to ``unplaced`` the stored events without a known state, among these events and in their auth chains.

        Returns false, and adds nothing, if there are more than ``most`` such events.
        """
        chains = {other for event in self._unsearched for other in event.auth_event_ids}  # of the batch, looked up once
        new = chains.union(event_ids) - self._searched - self.unplaced
        if not new or self._stored is None or self._stored.without_state is None:
            return True
        found = self._stored.without_state(new, most) if new.isdisjoint(self._too_many) else None
        if found is None:
            self._too_many |= new
            return False
        self._searched |= new
        self._unsearched = ()
        self.unplaced.update(found)
        return True

    def _is_entry(self, state: GroupState, event_id: str) -> bool:
        event = self.events.get(event_id)
        found = None if event is None else state.get((event.type, event.state_key or ""))
        return found is not None and found.event_id == event_id

    def _decide_trust(self, entries: Iterable[str]) -> None:
        # An accepted event is trusted if its own state is known, or if all its auth events are here, are trusted and
        # allow it. Otherwise a server through which a room is joined could withhold auth events, and make its user an
        # admin of the room.
        stack = [(entry, False) for entry in entries]
        while stack:
            event_id, is_chain_decided = stack.pop()
            if is_chain_decided:
                self._trusted[event_id] = self._is_allowed_by_trusted(self.events[event_id])
            elif event_id not in self._trusted and (event := self.events.get(event_id)) is not None:
                accepted = event.rejected_reason is None
                placed = event_id not in self.unplaced or event_id in self.after
                self._trusted[event_id] = accepted and placed  # false stays if the chain leads back to the event
                if accepted and not placed:
                    stack += ((event_id, True), *((other, False) for other in event.auth_event_ids))

    def _is_allowed_by_trusted(self, event: ParsedEvent) -> bool:
        if event.type == "m.room.create":
            return self.create is not None and event.event_id == self.create.event_id
        # Authorised once more, because a stored event may have come before its auth events.
        trusted = all(self._trusted.get(other, False) for other in event.auth_event_ids)
        return trusted and self.event_auth.by_auth_events(event) is None

    def _authorise(self, event: ParsedEvent, before: int | None) -> str | None:
        reason = self.event_auth.rejection(event, None if before is None else self.state(before))
        if reason is not None and event.rejected_reason is None:
            self.reject(event, reason)
        return reason

    def _resolve(self, groups: Sequence[int]) -> int:
        if self._whole or self._reads is not None:
            near = resolve_near(self.rules, self.auth_graph, self.builder, groups, self._reads)
            if near is not None:
                return self.builder.add_cheapest(near.sizes, near.changes)
        states = {group: self.builder.expand(group) for group in groups}
        if self._stored is not None:
            self._stored.prepare(list(states.values()))
        return self.builder.add_nearest(states, resolve(self.rules, self.auth_graph, list(states.values())))
