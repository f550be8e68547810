"""Assigns state groups: the state before and after every event of a room (pure).

If the prev events of an event have different states, these are resolved (``state.resolution.resolve``), once for each set
of groups. If a prev event is missing, the state before is unknown, and so are the states of all events above. Events are
walked in causal order of prev and auth events. Each is authorised on the way, because a rejected event does not change
the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.format.signatures import signed_by
from events.room.event_auth import EventAuthorizer
from events.room.graph import causal_order, cycles
from state.groups.deltas import GroupBuilder, StateKey
from state.resolution.auth_graph import AuthGraph
from state.resolution.nearby_groups import resolve_near
from state.resolution.resolve import resolve
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import AuthEvent
from state.rules.room_versions import RoomVersion, room_version

__all__ = ["CYCLE", "SECOND_CREATE", "GroupState", "RoomStates", "Stored", "is_create"]

CYCLE = "cycle: its prev or auth events lead back to it"
SECOND_CREATE = "create: the room has another create event"


def is_create(event: ParsedEvent) -> bool:
    """Returns true for an event that may begin a room. A create event that the rules refuse may not."""
    if event.type != "m.room.create" or event.state_key != "" or event.prev_event_ids:
        return False
    if event.rejection_given:
        return event.rejected_reason is None
    return not event.auth_event_ids and AuthRules(room_version(event.room_version)).refusal(event, {}) is None


class Reaching(Protocol):
    """An event with its prev events."""

    @property
    def prev_event_ids(self) -> tuple[str, ...]: ...


class GroupState:
    """The state of a group, read key by key as the rules need it."""

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
        """Returns the state of another group. If it builds on this one, the entries found so far are moved to it."""
        state = GroupState(self._builder, group, self._events)
        below, changes = self._builder.step(group)
        if below == self.group:
            state._found, self._found = self._found, {}
            state._found.update(changes)
        return state


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored part of a room that a batch of events continues.

    ``events`` finds every stored event of the room. ``after`` has the adopted groups of the events that the batch refers
    to. ``prepare`` is called with states before they are resolved, so that their events can be read in one query.
    ``recall`` returns the known resolution of some groups, and ``resolved`` collects the resolutions of this batch.
    If ``trusting`` is false, an event without auth events is rejected, as by servers (``EventAuthorizer``).
    ``whole`` is true if every event of the room is in memory.
    """

    events: MutableMapping[str, ParsedEvent]
    create: ParsedEvent | None
    builder: GroupBuilder
    after: dict[str, int]
    prepare: Callable[[Sequence[Mapping[StateKey, str]]], None]
    recall: Callable[[frozenset[int]], int | None] = lambda _groups: None
    resolved: dict[frozenset[int], int] = field(default_factory=dict)
    trusting: bool = False
    whole: bool = False


class RoomStates:
    """The states of one room. ``events`` holds every event by its ID, and after ``assign`` with its verdict."""

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
        self.judge = EventAuthorizer(self.rules, self.events, self.create, trusting=stored is None or stored.trusting)
        self.given: dict[str, Mapping[StateKey, str]] = {}
        """States before events as given from outside. They are used if prev events, or their states, are missing."""
        self.unplaced: Collection[str] = ()
        """The events of the batch, and the stored events without a known state of their own.

        Needed only if there are given states."""
        self._holding: dict[str, bool] = {}
        self.on_given: set[str] = set()
        """Events for which the given state was used as the state before them."""
        self.bases: Sequence[int] = ()
        """Groups from which a given state is likely to differ little."""
        self._resolved = stored.resolved if stored is not None else {}
        self._whole = stored is None or stored.whole
        self._last_state: GroupState | None = None

    @cached_property
    def auth_graph(self) -> AuthGraph:
        """The graph of auth events that state resolution reads."""
        return AuthGraph(self.events, self.version, self.create.event_id if self.create is not None else None)

    def assign(self, events: Sequence[ParsedEvent]) -> None:
        """Authorises all events, and assigns state groups to those in the graph. Events on a cycle are rejected."""
        also = {event_id: state.values() for event_id, state in self.given.items()}
        order, left = causal_order(events, auth=True, also=also)
        self.walk(events[number] for number in order)
        if left:
            for number in cycles(events, left, auth=True, also=also):
                self.reject(events[number], CYCLE)
            above = [events[number] for number in left if self.events[events[number].event_id].rejected_reason != CYCLE]
            self.walk(above[number] for number in causal_order(above, auth=True, also=also)[0])

    def walk(self, events: Iterable[ParsedEvent]) -> None:
        """Does the same as ``assign`` for events that are in causal order already."""
        for event in events:
            if event.state_key is not None:  # others take no part in resolutions
                self.auth_graph.rank(event.event_id)
            self._assign(event)

    def reject(self, event: ParsedEvent, reason: str) -> None:
        """Marks an event as rejected."""
        self.events[event.event_id] = replace(event, rejected_reason=reason, rejection_given=True)

    def state(self, group: int) -> GroupState:
        """Returns the state of a group for the auth rules."""
        last = self._last_state
        if last is None or last.group != group:  # most events have the state of the one before
            last = self._last_state = (
                last.at(group) if last is not None else GroupState(self.builder, group, self.events)
            )
        return last

    def merged(self, groups: Iterable[int | None]) -> int | None:
        """Returns the group that some groups resolve to, or null if there are none or one is unknown."""
        wanted = frozenset(groups)
        if len(wanted) < 2:
            return next(iter(wanted), None)
        distinct = {group for group in wanted if group is not None}
        if len(distinct) < len(wanted):
            return None
        resolvable = frozenset(distinct)
        if resolvable not in self._resolved:
            known = self._stored.recall(resolvable) if self._stored is not None else None
            self._resolved[resolvable] = self._resolve(sorted(distinct)) if known is None else known
        return self._resolved[resolvable]

    def reached(self, event: Reaching, before: int | None, came_before: Container[str]) -> Sequence[str]:
        """Returns the prev events that an event *reaches*: those whose states went into the state before the event.

        If that state (``before``) follows from the prev events, or is not known, all are reached. If it was given from
        outside, it may be some other state. Then the event reaches the prev events in ``came_before``, which were
        stored before it. A prev event that came later is reached only if its state equals ``before``, or if the states
        of all known prev events together resolve to ``before``.

        Otherwise a server could send an event above a gap, with an old state, and withhold the events in the gap. Once
        these arrived and led down to the forward extremities, the room would go back to the old state.
        """
        prevs = event.prev_event_ids
        late = [prev for prev in prevs if prev not in came_before]
        if before is None or not late:
            return prevs
        differing = {prev for prev in late if not self._are_equal(self.after.get(prev), before)}
        if differing and self._are_equal(
            self.merged([self.after[prev] for prev in prevs if prev in self.after]), before
        ):
            differing.difference_update(self.after)
        return [prev for prev in prevs if prev not in differing]

    def _are_equal(self, group: int | None, other: int) -> bool:
        return group is not None and (group == other or self.builder.expand(group) == self.builder.expand(other))

    def _assign(self, event: ParsedEvent) -> None:
        if event.outlier:
            self._judge(event, None)
            return
        if is_create(event):
            self._assign_create(event)
            return
        before = self._before(event)
        verdict = self._judge(event, before)
        if before is None:
            return
        self.before[event.event_id] = before
        if event.redacts is not None and verdict is None:
            self.judge.note_redaction(event, self.state(before))
        if event.state_key is None or verdict is not None:
            self.after[event.event_id] = before
        else:
            self.after[event.event_id] = self.builder.add(before, {(event.type, event.state_key): event.event_id})

    def _after_prevs(self, event: ParsedEvent) -> int | None:
        """Returns the group of the state after all prev events, or null if one of their states is not known.

        If the states differ, they are resolved.
        """
        prevs = event.prev_event_ids
        if len(prevs) == 1:
            return self.after.get(prevs[0])
        return self.merged(self.after.get(prev) for prev in prevs)

    def _before(self, event: ParsedEvent) -> int | None:
        """Returns the group before an event, or null if it is not known.

        A given state stands for the prev events that are missing. It is resolved with the states of the other prev
        events. Otherwise a server could take the room back to an old state, with an event on top of a forward extremity
        and of an event that the server withholds.
        """
        known = self._after_prevs(event)
        if known is not None or event.event_id not in self.given or not event.prev_event_ids:
            return known
        given = self.given[event.event_id]
        self._weigh(given.values())
        state = {key: entry for key, entry in given.items() if self._holding[entry]}
        self.on_given.add(event.event_id)
        told = self.builder.add_nearest({base: self.builder.expand(base) for base in self.bases}, state)
        return self.merged([told, *(self.after[prev] for prev in event.prev_event_ids if prev in self.after)])

    def _weigh(self, entries: Iterable[str]) -> None:
        """Records in ``_holding`` which entries of a given state are trusted, and which events of their auth chains.

        An accepted event is trusted if its own state is known. It is also trusted if its auth events allow it, and all
        of them are here and trusted. Without this rule a server could keep auth events back, and make its user an admin
        of a room that is joined through it.
        """
        stack = [(entry, False) for entry in entries]
        while stack:
            event_id, is_chain_weighed = stack.pop()
            if is_chain_weighed:
                self._holding[event_id] = self._is_allowed_by_what_holds(self.events[event_id])
            elif event_id not in self._holding and (event := self.events.get(event_id)) is not None:
                accepted, placed = event.rejected_reason is None, self._has_state(event_id)
                self._holding[event_id] = accepted and placed  # false stays if the chain leads back to the event
                if accepted and not placed:
                    stack += ((event_id, True), *((other, False) for other in event.auth_event_ids))

    def _is_allowed_by_what_holds(self, event: ParsedEvent) -> bool:
        if event.type == "m.room.create":
            return self.create is not None and event.event_id == self.create.event_id
        # Authorised once more, because a stored event may have come before its auth events.
        here = all(self._holding.get(other, False) for other in event.auth_event_ids)
        return here and self.judge.by_auth_events(event) is None

    def _has_state(self, event_id: str) -> bool:
        return event_id not in self.unplaced or event_id in self.after

    def _assign_create(self, event: ParsedEvent) -> None:
        if self.create is None or event.event_id != self.create.event_id:
            self.reject(event, SECOND_CREATE)
        elif self._judge(event, None) is None:
            self.after[event.event_id] = self.builder.add_full({(event.type, ""): event.event_id})

    def _judge(self, event: ParsedEvent, before: int | None) -> str | None:
        reason = self.judge.rejection(event, None if before is None else self.state(before))
        if reason is not None and event.rejected_reason is None:
            self.reject(event, reason)
        return reason

    def _resolve(self, groups: Sequence[int]) -> int:
        if self._whole and (near := resolve_near(self.rules, self.auth_graph, self.builder, groups)) is not None:
            return self.builder.add_cheapest(near)
        states = {group: self.builder.expand(group) for group in groups}
        if self._stored is not None:
            self._stored.prepare(list(states.values()))
        return self.builder.add_nearest(states, resolve(self.rules, self.auth_graph, list(states.values())))
