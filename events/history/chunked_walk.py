"""Walks a room's events in causal order, a chunk at a time, and finds the state groups before and after each event (pure).

The walk applies the rules of ``events.room.state_assignment``. The events of the current chunk are in memory. After
each chunk, only what the events of later chunks can need is kept:

* state events, and other events that are named as auth events. Content that no rule reads is dropped;
* the state groups (``state.groups.deltas``);
* some integers for every event: its groups, its flags, the numbers of its prev events, and the numbers that stand for
  its type and its sender (``events.history.event_numbers``).

Anything else that an event refers to is fetched again. The size of a chunk affects time and memory, never the result.

For example, the first chunk has a create event, a join and 998 messages. Of it the two state events, their groups and
the integers of 1,000 events are kept. A topic in the second chunk names the last message as prev event: its integers
say which group is the state before the topic.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from events.errors import HistoryError
from events.format.parsing import ParsedEvent
from events.format.redaction import REDACTION, may_redact
from events.history.event_numbers import EventNumbers, Links
from events.room.event_auth import is_ruled_by_sender
from events.room.graph import numbers_in_order, on_cycles, refers_to
from events.room.state_assignment import CYCLE, RoomStates, Stored, is_create
from state.groups.deltas import GroupBuilder
from state.rules.room_versions import RoomVersion

OUTLIER, REJECTED, SOFT_FAILED, SOFT_FAILURE_GIVEN, BACKFILLED = 1, 2, 4, 8, 16
ACCEPTED = OUTLIER | REJECTED | SOFT_FAILED
"""The flags of which an accepted event has none."""
_MOST_NAMES = 200_000
"""The most types and senders that are kept in memory. Messages with any others are fetched again when needed."""
_NONE = -1


class EventSource(Protocol):
    """The events of one room, numbered in stream order."""

    @property
    def room_id(self) -> str: ...
    @property
    def version(self) -> RoomVersion: ...
    def __len__(self) -> int: ...

    def event_ids(self) -> Iterable[str]: ...

    def creations(self) -> Iterable[ParsedEvent]:
        """Returns the create events. The first that may begin a room is the room's."""

    def fetch(self, numbers: Sequence[int]) -> Sequence[ParsedEvent]: ...

    def names(self, numbers: Sequence[int]) -> Sequence[str]: ...


class EventsInMemory:
    """The events of one room that are all in memory, with the room's create event. Implements ``EventSource``."""

    def __init__(
        self, room_id: str, version: RoomVersion, events: Sequence[ParsedEvent], create: ParsedEvent | None
    ) -> None:
        self.room_id, self.version, self._events, self._create = room_id, version, events, create

    def __len__(self) -> int:
        return len(self._events)

    def event_ids(self) -> Iterable[str]:
        return (event.event_id for event in self._events)

    def creations(self) -> Iterable[ParsedEvent]:
        return () if self._create is None else (self._create,)

    def fetch(self, numbers: Sequence[int]) -> Sequence[ParsedEvent]:
        return [self._events[number] for number in numbers]

    def names(self, numbers: Sequence[int]) -> Sequence[str]:
        return [self._events[number].event_id for number in numbers]


class PlainEvent(msgspec.Struct, frozen=True, gc=False):
    """A message of which only room ID, type, sender and ``backfilled`` are set: rules read no other field of it."""

    room_id: str
    type: str
    sender: str
    backfilled: bool
    event_id: str = ""
    state_key: None = None
    membership: None = None
    redacts: None = None
    rejected_reason: None = None
    depth: int = 0
    origin_server_ts: int = 0
    prev_event_ids: tuple[str, ...] = ()
    auth_event_ids: tuple[str, ...] = ()
    content: Mapping[str, Any] = {}
    outlier: bool = False
    soft_failed: bool = False


class _OutOfOrder(Exception):
    """An event comes before another that it refers to."""


MakeStates = Callable[[RoomVersion, Sequence[ParsedEvent], Stored], RoomStates]
"""``RoomStates``, or a subclass that knows states of the room which do not follow from its events."""


def walk_room(
    source: EventSource, chunk: int, watch: Callable[[int], None], make_states: MakeStates = RoomStates
) -> RoomWalk:
    """Walks all events of a room, ``chunk`` at a time. Calls ``watch`` with the number of events that are done.

    If the events are out of order, the walk begins a second time, with other ``RoomStates``.
    """
    count = len(source)
    numbers = EventNumbers(source.event_ids(), count, source.names) if count > chunk else None
    walk = RoomWalk(source, chunk, numbers, make_states)
    try:
        walk.run(range(count), watch, in_order=True)
    except _OutOfOrder:
        numbers = EventNumbers(source.event_ids(), count, source.names) if numbers is None else numbers
        walk = RoomWalk(source, chunk, numbers, make_states)
        walk.run_sorted(watch)
    return walk


class RoomWalk:
    """One walk through the events of a room. The number -1 stands for an unknown state group."""

    def __init__(
        self, source: EventSource, chunk: int, numbers: EventNumbers | None, make_states: MakeStates = RoomStates
    ) -> None:
        """``numbers`` may be None if all events form one chunk and come in causal order."""
        self.source, self.chunk = source, chunk
        self._numbers = numbers
        count = self.count = len(source)
        self.create = next(filter(is_create, source.creations()), None)
        stored = Stored({}, self.create, GroupBuilder(), {}, lambda _states: None, from_dump=True, whole=True)
        self.states = make_states(source.version, (), stored)
        self.before, self.after = array("i", [_NONE]) * count, array("i", [_NONE]) * count
        self.flags = bytearray(count)
        self.reasons: dict[int, str] = {}
        """Number of a rejected event -> the reason."""
        self.prevs = Links(count)
        """Number of an event -> numbers of its prev events. Numbers from ``count`` on stand for missing events."""
        self.redactions = array("i")
        """Three numbers for each redaction that is not rejected.

        They are the number of the redaction, that of its target or -1, and 1 if the redaction applies once accepted."""
        self.in_order = False
        """True when the given order is a causal one."""
        self._missing: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._name_list: list[str] = []
        self._types_or_kept, self._senders = array("i", bytes(4 * count)), array("i", bytes(4 * count))
        self._kept: list[str] = []
        self._all: Sequence[ParsedEvent] | None = None
        """Every event with its verdict, if all events form one chunk; else None."""
        self._kept_messages: set[str] = set()
        """Message events that are kept because other events name them as auth events."""
        self._done = 0

    @property
    def missing(self) -> list[str]:
        """The IDs of missing prev events. They are numbered from ``count``, the number of events in the room."""
        return list(self._missing)

    # --- the whole walk -----------------------------------------------------------------------------------------
    def run(self, order: Sequence[int], watch: Callable[[int], None], *, in_order: bool = False) -> None:
        # ``in_order``: these are all events in the order of the source. Raises ``_OutOfOrder`` if that is no causal
        # order.
        self.in_order = in_order
        for numbers in self.chunks(order):
            chunk = self._read(numbers)
            if in_order:
                _check_order(chunk)
            self.states.walk(chunk.events)
            if self._numbers is None:
                self._store_only_chunk(chunk)
            else:
                self._store_chunk(chunk)
            self._done += len(chunk.numbers)
            watch(self._done)

    def run_sorted(self, watch: Callable[[int], None]) -> None:
        # Sorts them into causal order first. Events on cycles are rejected.
        below = Links(self.count)
        for numbers in self.chunks(range(self.count)):
            self._link(numbers, below)
        order, left = numbers_in_order(self.count, below.of)
        cyclic = on_cycles(left, below.of)
        self.reasons.update(dict.fromkeys(cyclic, CYCLE))
        above, _ = numbers_in_order(self.count, below.of, sorted(set(left).difference(cyclic)))
        self.run(order, watch)
        for numbers in self.chunks(cyclic):
            self._store_chunk(self._read(numbers))
            self._done += len(numbers)
        self.run(above, watch)

    def chunks(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        for start in range(0, len(numbers), self.chunk):
            yield numbers[start : start + self.chunk]

    def _link(self, numbers: Sequence[int], below: Links) -> None:
        events = self.source.fetch(numbers)
        at = {event.event_id: number for number, event in zip(numbers, events, strict=True)}
        named = {other for event in events for other in (*event.prev_event_ids, *event.auth_event_ids)}
        at |= self._find(named - at.keys())
        for number, event in zip(numbers, events, strict=True):
            below.put(number, [at[other] for other in refers_to(event) if other in at])

    # --- one chunk ----------------------------------------------------------------------------------------------
    def _read(self, numbers: Sequence[int]) -> _Chunk:
        # with what the walk needs of other chunks: auth events, targets of redactions, and groups after prev events
        events = self.with_verdicts(numbers)
        at = {event.event_id: number for number, event in zip(numbers, events, strict=True)}
        if len(at) < len(numbers):
            raise HistoryError(f"{self.source.room_id}: an event is given twice; drop duplicates first")
        chunk = _Chunk(numbers, events, at)
        known_events, states = self.states.events, self.states
        known_events.update((event.event_id, event) for event in events)
        chunk.named.update(*(event.auth_event_ids for event in events))
        targets = {event.redacts for event in events if event.redacts is not None}
        prevs = set[str]().union(*(event.prev_event_ids for event in events)) - at.keys()
        chunk.elsewhere = self._find({*prevs, *(chunk.named - known_events.keys()), *(targets - at.keys())})
        self._load(chunk, {*chunk.named, *targets} - known_events.keys())
        states.after.update(
            {
                prev: self.after[n]
                for prev in prevs
                if (n := chunk.elsewhere.get(prev, _NONE)) >= 0 and self.after[n] >= 0
            }
        )
        return chunk

    def _find(self, event_ids: Collection[str]) -> dict[str, int]:
        return self._numbers.find(event_ids) if self._numbers is not None and event_ids else {}

    def _load(self, chunk: _Chunk, event_ids: Collection[str]) -> None:
        # from other chunks; of auth events among these the auth events, too
        known_events = self.states.events
        wanted = {event_id: at for event_id in event_ids if (at := chunk.elsewhere.get(event_id)) is not None}
        while wanted:
            loaded = self.source.fetch(list(wanted.values()))
            more: set[str] = set()
            for number, event in zip(wanted.values(), loaded, strict=True):
                known_events[event.event_id] = self._with_verdict(number, event)
                chunk.loaded.append(event.event_id)
                if event.event_id in chunk.named:
                    more.update(event.auth_event_ids)
            chunk.named |= more
            wanted = self._find(more - known_events.keys())

    def _with_verdict(self, number: int, event: ParsedEvent) -> ParsedEvent:
        if self.reasons and (reason := self.reasons.get(number)) is not None:
            return replace(event, rejected_reason=reason, rejection_given=True)
        return event

    def _store_only_chunk(self, chunk: _Chunk) -> None:
        # when one chunk has all events
        states, at = self.states, chunk.at
        self._all = events = [*map(states.events.__getitem__, at)]
        self.before = array("i", [states.before.get(event_id, _NONE) for event_id in at])
        self.after = array("i", [states.after.get(event_id, _NONE) for event_id in at])
        self.flags = bytearray(map(_flags, events))
        for number, event in enumerate(events):
            if not event.outlier:
                self.prevs.put(number, [self._prev_number(chunk, prev) for prev in event.prev_event_ids])
            if event.rejected_reason is not None:
                self.reasons[number] = event.rejected_reason
            elif event.type == REDACTION and not event.outlier:
                self._store_redaction(chunk, number, event)

    def _store_chunk(self, chunk: _Chunk) -> None:
        # and drops what no later chunk needs
        states, known_events = self.states, self.states.events
        for number, event_id in zip(chunk.numbers, chunk.at, strict=True):
            event = known_events[event_id]
            self.before[number] = states.before.get(event_id, _NONE)
            self.after[number] = states.after.get(event_id, _NONE)
            self.flags[number] = _flags(event)
            if event.rejected_reason is not None:
                self.reasons[number] = sys.intern(event.rejected_reason)
            if not event.outlier:
                self.prevs.put(number, [self._prev_number(chunk, prev) for prev in event.prev_event_ids])
            if event.type == REDACTION and not (event.outlier or event.rejected_reason is not None):
                self._store_redaction(chunk, number, event)
            if event.state_key is not None or event_id in chunk.named or event_id in self._kept_messages:
                self._keep(number, event)
            else:
                kind = self._name(event.type)
                self._types_or_kept[number] = max(kind, 0)
                self._senders[number] = self._name(event.sender) if kind >= 0 else _NONE
                chunk.loaded.append(event_id)
        self._drop_loaded(chunk)

    def _drop_loaded(self, chunk: _Chunk) -> None:
        # What was loaded from other chunks, except auth events; and the groups, which the arrays have already.
        for event_id in chunk.loaded:
            if event_id in chunk.named:
                self._kept_messages.add(event_id)
            else:
                self.states.events.pop(event_id, None)
        self.states.before.clear()
        self.states.after.clear()

    def _prev_number(self, chunk: _Chunk, prev: str) -> int:
        number = chunk.number(prev)
        return self._missing.setdefault(prev, self.count + len(self._missing)) if number is None else number

    def _store_redaction(self, chunk: _Chunk, number: int, redaction: ParsedEvent) -> None:
        target = chunk.number(redaction.redacts or "")
        applies = target is not None and self._applies(redaction, self.states.events[redaction.redacts or ""])
        self.redactions.extend((number, _NONE if target is None else target, applies))

    def _applies(self, redaction: ParsedEvent, target: ParsedEvent) -> bool:
        # provided that the redaction is accepted
        states = self.states
        if may_redact(redaction, target, states.version, None):
            return True
        before = states.before.get(redaction.event_id)
        if before is None:
            return False
        return may_redact(redaction, target, states.version, states.rules.levels(states.state(before), self.create))

    # --- what is carried on -------------------------------------------------------------------------------------
    def _keep(self, number: int, event: ParsedEvent) -> None:
        # Equal strings are shared, and prev events are dropped if no rule can read them.
        self._types_or_kept[number] = -1 - len(self._kept)
        self._kept.append(event.event_id)
        known_events = self.states.events
        auth = tuple(
            [known_events[other].event_id if other in known_events else other for other in event.auth_event_ids]
        )
        prevs = event.prev_event_ids
        is_on_create = self.create is not None and prevs == (self.create.event_id,)  # the creator's join
        known_events[event.event_id] = replace(
            event,
            prev_event_ids=prevs if is_on_create or event.type == "m.room.create" else (),
            auth_event_ids=auth,
            type=self._shared_name(event.type),
            sender=self._shared_name(event.sender),
            state_key=None if event.state_key is None else self._shared_name(event.state_key),
            content=event.content or _NOTHING,
        )

    def _shared_name(self, name: str) -> str:
        number = self._name(name)
        return self._name_list[number] if number >= 0 else name

    def _name(self, name: str) -> int:
        # -1 if too many are in use
        number = self._names.get(name, _NONE)
        if number < 0 and len(self._name_list) < _MOST_NAMES:
            number = self._names[name] = len(self._name_list)
            self._name_list.append(name)
        return number

    def with_verdicts(self, numbers: Sequence[int]) -> Sequence[ParsedEvent]:
        if self._all is not None:
            return [self._all[number] for number in numbers]
        return [self._with_verdict(*pair) for pair in zip(numbers, self.source.fetch(numbers), strict=True)]

    def event(self, number: int) -> ParsedEvent | PlainEvent:
        """Returns an event with the fields that the auth rules read."""
        if self._all is not None:
            return self._all[number]
        event = self.seen_event(number)
        if not isinstance(event, PlainEvent) or is_ruled_by_sender(event):
            return event
        # From room version 3 on, the auth rules do not read the target of a redaction.
        if event.type == REDACTION and self.source.version.ids_are_hashes:
            return event
        return self._fetched(number)

    def seen_event(self, number: int) -> ParsedEvent | PlainEvent:
        """Returns an event with the fields on which visibility depends. For a message these are only type and sender."""
        if self._all is not None:
            return self._all[number]
        type_or_kept, sender = self._types_or_kept[number], self._senders[number]
        if type_or_kept < 0:
            return self.states.events[self._kept[-1 - type_or_kept]]
        if sender < 0:
            return self._fetched(number)
        backfilled = bool(self.flags[number] & BACKFILLED)
        return PlainEvent(self.source.room_id, self._name_list[type_or_kept], self._name_list[sender], backfilled)

    def _fetched(self, number: int) -> ParsedEvent:
        return self._with_verdict(number, self.source.fetch([number])[0])


_NOTHING: Mapping[str, Any] = {}


@dataclass(slots=True)
class _Chunk:
    # ``at`` has the numbers of the chunk's events, ``elsewhere`` those of events in other chunks that it refers to.
    numbers: Sequence[int]
    events: Sequence[ParsedEvent]
    at: dict[str, int]
    elsewhere: dict[str, int] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    """The IDs of auth events."""
    loaded: list[str] = field(default_factory=list)
    """The IDs of events that are dropped after the chunk, unless they are auth events."""

    def number(self, event_id: str) -> int | None:
        number = self.at.get(event_id)
        return self.elsewhere.get(event_id) if number is None else number


def _check_order(chunk: _Chunk) -> None:
    last = chunk.numbers[-1]
    later = set(chunk.at)  # the event itself and all later events
    for event in chunk.events:
        prevs = later.isdisjoint(event.prev_event_ids) or event.outlier
        if not (prevs and later.isdisjoint(event.auth_event_ids)):
            raise _OutOfOrder
        later.discard(event.event_id)
    beyond = {event_id for event_id, number in chunk.elsewhere.items() if number > last}
    if beyond and any(not beyond.isdisjoint(refers_to(event)) for event in chunk.events):
        raise _OutOfOrder


def _flags(event: ParsedEvent) -> int:
    if event.rejected_reason is None and not (event.outlier or event.soft_failed or event.soft_failure_given):
        return BACKFILLED if event.backfilled else 0
    return (
        OUTLIER * event.outlier
        | REJECTED * (event.rejected_reason is not None)
        | SOFT_FAILED * event.soft_failed
        | SOFT_FAILURE_GIVEN * event.soft_failure_given
        | BACKFILLED * event.backfilled
    )
