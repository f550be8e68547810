"""Computes the changes of a batch of new events in one room: ``next_rows``, the counterpart of a whole history's rows.

Example: a message on top of the only extremity gives

    events [the message], new_extremities [its ID], gone_extremities [its prev event]

and nothing else. The rules are the same as for a whole history (``events.history.rows``): ``events.room.state_assignment``,
``events.room.extremities``, ``events.visibility.ranges``. Nothing here sends a statement. What is stored is asked of
``StoredRoom``, in the caller's transaction with the room's row locked.

Events are numbered from 0 in the order of their positions. ``events.persist.write_rows`` maps these numbers to stream
positions. The number -1 stands for the position of the last accepted event before the batch.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct, field, structs

from events.errors import EventRefused, Reason
from events.format.parsing import ParsedEvent
from events.format.redaction import REDACTION, may_redact
from events.persist.room_cache import StoredRoom
from events.room.event_auth import PRUNED_TYPES
from events.room.extremities import EventExtremityTracker
from events.room.graph import causal_order, is_accepted
from events.room.state_assignment import CYCLE, RoomStates, is_create
from events.visibility.ranges import (
    RANGE_TYPES,
    Step,
    StoredRanges,
    VisibilityRanges,
    VisibilityRow,
    open_ranges,
    wide_ranges,
)
from events.visibility.rule import known_visibility
from events.visibility.viewer import HISTORY_VISIBILITY, history_visibility, membership
from state.groups.deltas import StateKey
from state.rules.auth_selection import CREATE, POWER_LEVELS
from state.rules.room_versions import room_version

MOST_FILLED = 2_000
"""The largest number of stored events that get a state with one batch. ``events.persist.gap_filling`` does the rest."""
_AUTHORISED_BY_PRUNED = ("m.room.member", *PRUNED_TYPES)
"""Types whose auth rules read content that a redaction removes."""
MOST_FORWARD_EXTREMITIES = 1_000
"""Live events that would add one to so many are refused. All of them are resolved while the room is locked."""
_BASES = 3
"""The most groups of forward extremities with which a given state is compared, so that it is stored as a small delta."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is accepted of a server whose stored history the events are.

    ``unproven``: auth events may be missing, as in ``RoomStates``. ``as_stored``: prev events of live events may be
    missing, and the server's verdicts stand, even when a gap below the events is filled.
    """

    unproven: bool = False
    as_stored: bool = False


NOTHING = Accepted()


class Filled(Struct):
    """Stored events whose state has become known, and which were authorised again.

    ``places`` has their stream positions.

    ``rejected`` has the events that were accepted before and are rejected now. ``waiting`` has events that got no
    state, because their auth chains are incomplete. ``more``: there are more events than one batch handles.
    """

    events: list[ParsedEvent] = []
    places: dict[str, int] = {}
    rejected: list[str] = []
    waiting: list[str] = []
    more: bool = False

    @property
    def live(self) -> bool:
        """True if some of the events are live, so that the visibility ranges of live events have to be recomputed."""
        return any(place > 0 for place in self.places.values())


class RoomChanges(Struct):
    """The changes that a batch makes in one room. Events are numbered by their indexes in ``events``."""

    events: list[ParsedEvent] = []
    backfilled: int = 0
    """The number of backfilled events in the graph, which are the first of ``events``. Outliers are not among them."""
    refused: list[tuple[ParsedEvent, EventRefused]] = []
    create: ParsedEvent | None = None
    new_extremities: list[str] = []
    removed_extremities: list[str] = []
    state_changes: list[tuple[int, str, str, str | None, str | None]] = []
    """(number, type, state_key, new event ID, previous event ID).

    The new ID is None if the entry is removed, the previous ID if it is new."""
    current_unresolved: bool = False
    loses_state: bool = False
    """True if the current state is unknown from now on, so that the stored one is dropped."""
    visibility_unresolved: bool = False
    ranges: list[VisibilityRow] = []
    closed: list[tuple[str | None, str, int]] = []
    uncut: list[str] = []
    now_shown: list[str] = []
    """Stored redactions that now have an effect, or are now rejected. Their ``withheld`` rows are deleted."""
    redacted: dict[str, str] = {}
    """Target -> the redaction that applies to it, for stored and new targets."""
    last_position: int | None = None
    """The position for number -1: that of the last accepted event before the batch."""
    filled: Filled = field(default_factory=Filled)
    """Stored events whose state has become known."""
    old_states: RoomStates | None = None
    """The states from which ranges of backfilled events are computed after the rows are written. None: no such ranges."""
    is_late: bool = False
    """True if states that were resolved before may now be resolved to other states.

    This is so if stored events may have state events of the batch as auth events: outliers, events that were outliers,
    backfilled events. It is also so if the batch rejects stored events."""
    needs_own_position: bool = False
    """True if the current state changes without a live event.

    The change then gets a position of its own, under the number ``len(events)``."""
    visibility_to_rebuild: bool = False
    """True if stored ranges cannot be continued, but all needed states are known.

    All ranges of the room are then recomputed after the rows are written."""
    new_groups: list[tuple[bool, int]] = []
    """(true if stored in full, hops) of each state group that was written."""
    reused_groups: int = 0
    """The number of events that needed no new state group."""


def next_rows(
    known: StoredRoom,
    batch: Sequence[ParsedEvent],
    given: Mapping[str, Sequence[str]] | None = None,
    *,
    to_resolve: Sequence[str] = (),
    accepts: Accepted = NOTHING,
    freed: Sequence[str] | None = None,
) -> RoomChanges:
    """Returns the changes of a batch in the room ``known``. Writes nothing.

    ``batch`` has parsed events of that room, none of them stored or listed twice. ``given`` has states before events that
    other servers gave: the ID of an event, perhaps a stored one without a state -> the IDs of state events.

    ``to_resolve`` has stored events that have no state yet, and whose state can be computed now. ``freed`` has the prev
    events of stored events that left the graph. It is None unless stored events left the graph or came back into it.
    """
    if not given and not to_resolve and freed is None and (changes := _talk(known, batch)) is not None:
        return changes
    return _NextRows(known, batch, given or {}, to_resolve, freed, accepts).compute()


def _talk(known: StoredRoom, batch: Sequence[ParsedEvent]) -> RoomChanges | None:
    """Returns the changes if all events are messages, one on top of the other, with the verdicts of a server that accepted them.

    Most events of a mirror are of this kind. They change neither state nor ranges, and no rule has to be asked. Returns None
    if something else may have to be done: then the rules give the changes, and the same ones for such messages.
    """
    reading, room = known.reading, known.room
    extremities = reading.extremities.get(room.room_id, ())
    if (
        not batch
        or len(extremities) != 1
        or room.create_event_id is None
        or room.current_state_unresolved
        or room.visibility_unresolved
    ):
        return None
    (extremity,) = extremities
    facts, (latest, place) = reading.events.get(extremity), reading.latest.get(room.room_id, ("", 0))
    if (
        facts is None
        or latest != extremity
        or facts.state_group is None
        or not room_version(room.room_version).ids_are_hashes
    ):
        return None
    last = extremity
    for event in batch:
        if event.prev_event_ids != (last,) or not _is_talk(event):
            return None
        last = event.event_id
    ids = {event.event_id for event in batch}
    named = {*(prev for prev, _ in reading.above), *(target for _, _, target in reading.redactions)}
    if not ids.isdisjoint(named):
        return None
    known.continue_group([extremity, *ids], facts.state_group)
    known.events.update((event.event_id, event) for event in batch)
    return RoomChanges(events=list(batch), new_extremities=[last], removed_extremities=[extremity], last_position=place)


def _is_talk(event: ParsedEvent) -> bool:
    return (
        event.state_key is None
        and event.rejection_given
        and event.soft_failure_given
        and is_accepted(event)
        and not event.outlier
        and not event.backfilled
        and event.type not in RANGE_TYPES
        and event.type != REDACTION
    )


class _NextRows:
    def __init__(
        self,
        known: StoredRoom,
        batch: Sequence[ParsedEvent],
        given: Mapping[str, Sequence[str]],
        to_resolve: Sequence[str],
        freed: Sequence[str] | None,
        accepts: Accepted,
    ) -> None:
        self.stored, self._row, self._reading = known, known.room, known.reading
        self._version = room_version(known.room.room_version)
        self._given, self._to_resolve, self._freed = given, to_resolve, freed
        self._accepts = accepts
        self.changes = RoomChanges()
        # Once events left the graph or came back into it, the stored current state is not that of the stored extremities.
        self._continues = freed is None and not known.room.current_state_unresolved
        self._changed_between = False
        """True if memberships or history visibility changed in the current state without an accepted live event."""
        self._batch = list(batch)
        self.states: RoomStates

    def compute(self) -> RoomChanges:
        self.stored.read(self._batch)
        self.changes.is_late = self.stored.resolutions_outdated = any(map(self._is_late, self._batch))
        given = self._read_given()
        self._refuse_closing_cycles(given)
        self._refuse_without_place(given)
        self.states = self._room_states(given)
        self.states.assign(self._batch)
        # Before events without a state are refused. Example: the batch has G, which fills a gap below the stored event S, and
        # N above S. N gets a state only after S has got one.
        self._fill()
        self._refuse_cycles()
        self._refuse_unproven()
        self._refuse_without_state()
        if self._row.create_event_id is None and self.states.create is not None:
            self.changes.create = self.states.events[self.states.create.event_id]
        outliers = [event for event in self._batch if event.outlier]
        graph = [event for event in self._batch if not event.outlier]
        old = [event for event in graph if event.backfilled]
        live = [event for event in graph if not event.backfilled] if old else graph
        # Ranges and redactions come after the arrival, which decides on soft failure: a soft-failed event has no range, and a
        # soft-failed redaction has no effect.
        steps = self._arrive(old, live, outliers)
        self._compute_ranges(steps)
        self._redact()
        return self.changes

    # --- stored and given state ------------------------------------------------------------------------------------------
    def _read_given(self) -> dict[str, dict[StateKey, str]]:
        if not self._given:
            return {}
        batch = {event.event_id: event for event in self._batch}
        named = {event_id for ids in self._given.values() for event_id in ids} - batch.keys()
        self.stored.events.load([*named, *self._given])
        events = ChainMap(batch, self.stored.events)
        found = {}
        for event_id, ids in self._given.items():
            try:
                found[event_id] = _given_state(events[event_id], ids, events)
            except EventRefused as error:
                self.changes.refused.append((events[event_id], error))
        bad = self._given.keys() - found.keys()
        self._batch = [event for event in self._batch if event.event_id not in bad]
        return found

    def _room_states(self, given: Mapping[str, Mapping[StateKey, str]]) -> RoomStates:
        stored = self.stored.as_stored(self._row.create_event_id)
        if stored.create is None and given:  # so take the create event of the given state
            create_id = next(iter(given.values()))[CREATE]
            batch = {event.event_id: event for event in self._batch}
            stored = replace(stored, create=batch.get(create_id) or self.stored.events[create_id])
        states = RoomStates(self._version, self._batch, stored)
        states.accepts_unproven = self._accepts.unproven
        states.given.update(given)
        self._find_redacted(states, self._batch)
        if given:
            states.find_unplaced(event_id for state in given.values() for event_id in state.values())
            groups = {
                self.stored.after[extremity] for extremity in self.stored.extremities if extremity in self.stored.after
            }
            states.bases = sorted(groups)[-_BASES:]
        return states

    def _find_redacted(self, states: RoomStates, events: Sequence[ParsedEvent]) -> None:
        # of the power levels and third-party invites that authorise these events
        authorised = [event for event in events if event.type in _AUTHORISED_BY_PRUNED]
        if not authorised:
            return
        groups = set(self.stored.after.values())
        levels = {states.builder.lookup(group, POWER_LEVELS) for group in groups}
        levels |= {given.get(POWER_LEVELS) for given in states.given.values()}
        named = {other for event in authorised for other in event.auth_event_ids}
        states.event_auth.redacted |= self.stored.redacted(
            [*named, *(found for found in levels if found)], PRUNED_TYPES
        )

    def _fill(self) -> None:
        # Stored events above new events may get a state, and so may new events above these stored events.
        states = self.states
        new = [event.event_id for event in self._batch if not event.outlier]
        seeds = [*self._to_resolve, *(event_id for event_id in states.given if event_id not in new)]
        if not seeds and not self._reading.above:
            return
        referred_to = {prev for prev, _ in self._reading.above}
        filling = any(e in states.after for e in new) and not referred_to.isdisjoint(new)
        places = self.stored.unresolved_above(new, seeds, MOST_FILLED) if filling or seeds else {}
        if places:
            stored = self.stored
            stored.events.load(places)
            found = [structs.replace(stored.events[event_id], stream_ordering=at) for event_id, at in places.items()]
            stored.events.load([other for event in found for other in event.auth_event_ids])
            stored.adopt_after({prev for event in found for prev in event.prev_event_ids} - places.keys() - set(new))
            self._find_redacted(states, found)
            waiting = [event for event in self._batch if event.event_id not in states.after]
            self.changes.filled = _authorise_again(states, found, waiting, self._accepts)
            if self.changes.filled.rejected:
                self.changes.is_late = stored.resolutions_outdated = True
                stored.resolved.clear()

    # --- refusals ----------------------------------------------------------------------------------
    def _refuse_closing_cycles(self, given: dict[str, dict[StateKey, str]]) -> None:
        if not self._batch or self._version.ids_are_hashes:
            return
        found = self.stored.closing_a_cycle(self._batch)
        for event in self._batch:
            if event.event_id in found:
                self.changes.refused.append((event, EventRefused(Reason.CYCLE, CYCLE)))
                given.pop(event.event_id, None)
        self._batch = [event for event in self._batch if event.event_id not in found]

    def _refuse_without_place(self, given: Collection[str]) -> None:
        # Also puts the batch into causal order. Prev events of backfilled events may be missing, only create events
        # have none.
        order, left = causal_order(self._batch)
        inside: set[str] = set()
        leaves = dict.fromkeys(self.stored.extremities)
        kept = []
        for number in (*order, *left):
            event = self._batch[number]
            reason = None if event.outlier or number in left else self._no_place(event, inside, given)
            if reason is None and self._is_live(event):
                reason = self._one_fork_more(event, leaves)
            if reason is not None:
                self.changes.refused.append((event, reason))
                continue
            kept.append(event)
            if not event.outlier:
                inside.add(event.event_id)
        self._batch = kept

    def _no_place(self, event: ParsedEvent, inside: set[str], given: Collection[str]) -> EventRefused | None:
        if not event.prev_event_ids:
            if event.type == "m.room.create":
                return None
            return EventRefused(Reason.NO_PREV_EVENTS, "only a create event may stand on nothing")
        if event.backfilled or event.event_id in given or self._accepts.as_stored:  # these may be above a gap
            return None
        missing = [prev for prev in event.prev_event_ids if prev not in inside and not self.stored.in_graph(prev)]
        if missing:
            shown = ", ".join(missing[:3])
            return EventRefused(Reason.MISSING_PREV_EVENTS, f"{shown} must be stored first, or come in the same batch")
        return None

    def _one_fork_more(self, event: ParsedEvent, leaves: dict[str, None]) -> EventRefused | None:
        # ``leaves`` are the forward extremities before the event, if all events before it were accepted.
        below = [prev for prev in event.prev_event_ids if prev in leaves]
        if not below and len(leaves) >= MOST_FORWARD_EXTREMITIES and not self._accepts.unproven:
            detail = (
                f"the room has {len(leaves):,} forward extremities, and none of them is a prev event of this one: "
                "it can be stored when some are merged (LocalRoom.merge_extremities)"
            )
            return EventRefused(Reason.TOO_MANY_FORKS, detail)
        for prev in below:
            del leaves[prev]
        leaves[event.event_id] = None
        return None

    def _refuse_unproven(self) -> None:
        bad = []
        for event in self._batch:
            untrusted = self.states.unproven.get(event.event_id)
            if untrusted and event.event_id not in self.states.after:
                detail = (
                    f"{', '.join(untrusted[:3])}, or an auth event below, is missing or was not allowed: store it first"
                )
                bad.append((event, EventRefused(Reason.MISSING_AUTH_EVENTS, detail)))
        self._refuse_each(bad)
        self._refuse_each(self._live_above({event.event_id for event, _ in bad}))

    def _refuse_without_state(self) -> None:
        # live events only, in a room whose current state is known
        if self._accepts.as_stored or self._row.current_state_unresolved or not self.stored.extremities:
            return
        detail = "the state at its prev events is not known: give it as state_before, or store what is below them"
        self._refuse_each(
            [
                (event, EventRefused(Reason.MISSING_PREV_EVENTS, detail))
                for event in self._batch
                if event.event_id not in self.states.after and event.prev_event_ids and self._is_live(event)
            ]
        )

    def _refuse_cycles(self) -> None:
        self._batch = [self.states.events[event.event_id] for event in self._batch]
        bad = [(event, EventRefused(Reason.CYCLE, CYCLE)) for event in self._batch if event.rejected_reason == CYCLE]
        if not bad:
            return
        self._refuse_each(bad)
        self._batch = [self._batch[number] for number in causal_order(self._batch)[0]]
        self._refuse_each(self._live_above({event.event_id for event, _ in bad}))

    def _live_above(self, refused: Collection[str]) -> list[tuple[ParsedEvent, EventRefused]]:
        refused_ids, above = set(refused), []
        for event in self._batch:
            below = refused_ids.intersection(event.prev_event_ids)
            if below and self._is_live(event) and event.event_id not in self.states.given:
                detail = f"{min(below)} was refused, and nothing may build on it"
                above.append((event, EventRefused(Reason.MISSING_PREV_EVENTS, detail)))
                refused_ids.add(event.event_id)
        return above

    def _refuse_each(self, refused: Sequence[tuple[ParsedEvent, EventRefused]]) -> None:
        if not refused:
            return
        self.changes.refused += refused
        refused_ids = {event.event_id for event, _ in refused}
        self._batch = [event for event in self._batch if event.event_id not in refused_ids]
        for event_id in refused_ids:
            del self.states.events[event_id]
            self.states.after.pop(event_id, None)

    # --- arrival ------------------------------------------------------------------------------------------------
    def _arrive(
        self, old: Sequence[ParsedEvent], live: Sequence[ParsedEvent], outliers: Sequence[ParsedEvent]
    ) -> list[Step]:
        """Processes the arrival of backfilled events (``old``), then live events, then outliers.

        Numbers them in this order.

        Returns one ``Step`` for each accepted live event with a known state.
        """
        changes, states = self.changes, self.states
        # In two cases the stored forward extremities have to be checked again. First: live events may now reach a stored
        # event that has got its state. Second: a stored event E has a given state, and its prev events are an event of the
        # batch and another event X. If the states of both resolve to the given state, E now reaches X, too.
        again = changes.filled.events or self._is_below_a_merge()
        freed = () if self._freed is None and again else self._freed
        extremities = self.stored.extremities_before([*old, *live], states, changes.filled.rejected, freed)
        tracker = EventExtremityTracker(
            states, extremities, arrived=[prev for event in live for prev in event.prev_event_ids]
        )
        self._current_before = known = tracker.current if self._continues else None
        # Batch A resolves the states of two forward extremities. Batch B stores an auth event of theirs, and resolves the same
        # states to another state. So B compares its state with what A has resolved them to, or with the stored rows.
        groups = {states.after.get(event_id) for event_id in self.stored.extremities}
        if known is not None and changes.is_late and len(groups) > 1:
            known = self.stored.resolved_before({group for group in groups if group is not None})
        steps: list[Step] = []
        # Backfilled events come first. They may connect a forward extremity to a live event, which changes the current
        # state before any live event of the batch. That change gets the number of the first live event.
        for event in old:
            tracker.add_with_verdict(event)
            changes.events.append(event)
        changes.backfilled = len(old)
        if live and tracker.current is not None and tracker.current != known:
            self._record_changes(len(changes.events), known, tracker.current, between=True)
            known = tracker.current
        for event in live:
            authorised = tracker.add(event)
            changes.events.append(authorised)
            if tracker.current is not None and tracker.current != known:
                self._record_changes(
                    len(changes.events) - 1, known, tracker.current, between=not is_accepted(authorised)
                )
                known = tracker.current
            self._add_step(steps, authorised, tracker.current)
        changes.events += outliers
        self._finish(tracker, known, steps, len(live))
        return steps

    def _is_below_a_merge(self) -> bool:
        # a stored event has an event of the batch and another event as prev events
        above = {event_id for _, event_id in self._reading.above}
        self.stored.events.load(above)
        return any(len(self.stored.events[event_id].prev_event_ids) > 1 for event_id in above)

    def _finish(self, tracker: EventExtremityTracker, known: int | None, steps: list[Step], live: int) -> None:
        # ``known`` is the group that was last recorded for the current state, or None.
        changes = self.changes
        current = tracker.finish()
        if steps and current is not None and current != steps[-1].current:  # the next batch continues from this state
            steps[-1] = structs.replace(steps[-1], current=current)
        if current is not None and current != known:
            recorded = len(changes.state_changes)
            number = changes.backfilled + live - 1 if live else len(changes.events)
            self._record_changes(number, known, current, between=not steps)
            # Without a live event, a position of its own is also needed if the state is merely known again.
            has_changes = len(changes.state_changes) > recorded
            changes.needs_own_position = not live and (has_changes or not self._continues)
        changes.current_unresolved = current is None and bool(tracker.extremities.current)
        changes.loses_state = changes.current_unresolved and not self._row.current_state_unresolved
        before = set(self.stored.extremities)
        changes.new_extremities = [event_id for event_id in tracker.extremities.current if event_id not in before]
        after = tracker.extremities.current
        changes.removed_extremities = [event_id for event_id in self.stored.extremities if event_id not in after]

    def _is_late(self, event: ParsedEvent) -> bool:
        known = self._reading.events.get(event.event_id)
        return event.state_key is not None and (not self._is_live(event) or (known is not None and known.outlier))

    @staticmethod
    def _is_live(event: ParsedEvent) -> bool:
        return not event.outlier and not event.backfilled

    def _record_changes(self, number: int, known: int | None, current: int, *, between: bool) -> None:
        # If ``known`` is None, the stored rows of the current state are compared. ``between``: no accepted live event
        # made it.
        found: Mapping[StateKey, tuple[str | None, str | None]]
        if known is None:
            old = self.stored.current_state()
            new = self.states.builder.expand(current)
            found = {key: (old.get(key), new.get(key)) for key in sorted({**old, **new})}
        else:
            found = self.states.builder.changes_between(known, current)
        changed = [(number, *key, new, old) for key, (old, new) in found.items() if old != new]
        self.changes.state_changes += changed
        if between:  # no step carries this change to the ranges, so they have to be recomputed
            self._changed_between |= not {kind for _, kind, *_ in changed}.isdisjoint(
                ("m.room.member", HISTORY_VISIBILITY[0])
            )

    def _add_step(self, steps: list[Step], event: ParsedEvent, current: int | None) -> None:
        if not is_accepted(event):
            return
        after = self.states.after.get(event.event_id)
        if after is None:  # without a state no user can be shown the event, and the ranges cannot continue past it
            self.changes.visibility_unresolved = True
            return
        before = self.states.before.get(event.event_id)
        steps.append(Step(len(self.changes.events) - 1, event, before, after, after if current is None else current))

    # --- visibility ---------------------------------------------------------------------------------------------
    def _compute_ranges(self, steps: Sequence[Step]) -> None:
        # Of live events only. The ranges of backfilled events are written when their positions are known.
        changes, builder, events = self.changes, self.states.builder, self.states.events
        # Ranges can only be continued after the room's last event. All are recomputed if something changed before it: stored
        # live events have got their state, or the current state changed without an accepted live event.
        has_changed = changes.filled.live or (self._changed_between and self._row.room_id in self._reading.latest)
        if self._row.visibility_unresolved or changes.visibility_unresolved or has_changed:
            changes.visibility_to_rebuild = not (changes.visibility_unresolved or changes.current_unresolved)
            changes.visibility_unresolved = True
            return
        changes.old_states = self.states
        group = self._group_before()
        if not all(step.changes_nothing(group, self._current_before) for step in steps):
            live = VisibilityRanges(builder, events, self._stored_ranges(group), self.stored.events.memberships)
            for step in steps:
                live.add(step)
            changes.ranges += [*live.rows, *live.still_open()]
            changes.closed, changes.uncut = live.closed, live.uncut

    def _group_before(self) -> int | None:
        event_id, self.changes.last_position = self._reading.latest.get(self._row.room_id, (None, None))
        if event_id is None or self._current_before is None:
            return None
        if event_id not in self.stored.after:
            self.stored.adopt_after([event_id])
        return self.stored.after[event_id]

    def _stored_ranges(self, group: int | None) -> StoredRanges:
        # They follow from the state after the last accepted event (``group``), and from the current state.
        current = self._current_before
        if group is None or current is None:
            return StoredRanges(last=-1)
        setting = known_visibility(history_visibility(self.states.state(group)))
        state = self.states.state(current)
        return StoredRanges(
            current=current,
            setting=setting,
            last=-1,
            wide=wide_ranges(setting, known_visibility(history_visibility(state)), -1),
            of_user=lambda user_id: open_ranges(membership(state, user_id), setting, -1),
            invited=lambda: self._invited(current),
        )

    def _invited(self, current: int) -> list[str]:
        found = self.stored.members("invite")
        # Their ranges begin or end, so ``of_user`` is going to ask for each of them.
        self.states.builder.load(current, [("m.room.member", user_id) for user_id in found])
        self.stored.events.load(found.values())
        return list(found)

    # --- redactions ---------------------------------------------------------------------------------------------
    def _redact(self) -> None:
        # New redactions of stored and new events, and stored redactions of new events. The first that applies is
        # recorded.
        new = {event.event_id: event for event in (*self.changes.filled.events, *self.changes.events)}
        effective, earlier = self._effective(new)
        stored = dict.fromkeys([*earlier, *(event.event_id for event in self.changes.filled.events)])
        rejected = set(self.changes.filled.rejected)
        self.changes.now_shown = [event_id for event_id in stored if event_id in effective or event_id in rejected]
        for number, event in enumerate(self.changes.events):
            if event.type == REDACTION and is_accepted(event) and event.event_id not in effective:
                self.changes.ranges.append(VisibilityRow(None, "withheld", number, number))

    def _effective(self, new: Mapping[str, ParsedEvent]) -> tuple[set[str], list[str]]:
        # (redactions that have an effect, stored redactions that were examined)
        freed = [new[event_id].redacts or "" for event_id in self.changes.filled.rejected]
        earlier = self._redactions_of({*new, *freed})
        later = [(event, event.redacts) for event in new.values() if event.redacts is not None and is_accepted(event)]
        if not earlier and not later:
            return set(), []
        self.stored.adopt_after([event_id for event_id, _ in earlier])
        pairs = [(new.get(event_id) or self.stored.events[event_id], target) for event_id, target in earlier]
        pairs += later
        self.stored.events.load([target for _, target in pairs])
        effective = set()
        for redaction, target_id in pairs:
            target = new.get(target_id) or self.stored.events.get(target_id)
            if target is not None and self._applies(redaction, target):
                self.changes.redacted.setdefault(target_id, redaction.event_id)
                effective.add(redaction.event_id)
        return effective, [event_id for event_id, _ in earlier]

    def _redactions_of(self, event_ids: Collection[str]) -> list[tuple[str, str]]:
        found = [
            (redaction, target)
            for room_id, redaction, target in self._reading.redactions
            if room_id == self._row.room_id
        ]
        if self.changes.filled.events:  # ``lock_and_read`` did not look for their redactions
            found = self.stored.redactions_of(event_ids)
        return [(redaction, target) for redaction, target in found if target in event_ids]

    def _applies(self, redaction: ParsedEvent, target: ParsedEvent) -> bool:
        if not is_accepted(redaction):
            return False
        group = self.states.before.get(redaction.event_id, self.stored.after.get(redaction.event_id))
        levels = self.states.rules.levels(self.states.state(group), self.states.create) if group is not None else None
        return may_redact(redaction, target, self._version, levels)


# --- states given from outside -----------------------------------------------------------------------------------------


def _given_state(event: ParsedEvent, named: Sequence[str], events: Mapping[str, ParsedEvent]) -> dict[StateKey, str]:
    """Returns the state given with ``event`` as a map.

    ``named`` are the IDs of the events in that state.

    It may contain rejected events, and events whose auth chains are incomplete, which ``RoomStates`` leaves out once
    all events are authorised. Raises ``EventRefused`` (``bad-state``) if they cannot be a state of the event's room.
    """
    found: dict[StateKey, str] = {}
    for event_id in dict.fromkeys(named):
        entry = events.get(event_id)
        if entry is None:
            raise _bad_state(f"{event_id} is neither stored nor in the batch")
        if entry.room_id != event.room_id:
            raise _bad_state(f"{event_id} is of the room {entry.room_id}")
        if entry.state_key is None:
            raise _bad_state(f"{event_id} is no state event")
        key = entry.type, entry.state_key
        if found.setdefault(key, event_id) != event_id:
            raise _bad_state(f"{found[key]} and {event_id} are both for {key}")
    if CREATE not in found:
        raise _bad_state("the create event is missing")
    if not is_create(events[found[CREATE]]):
        raise _bad_state(f"the create event {found[CREATE]} may not begin the room")
    return found


def _bad_state(detail: str) -> EventRefused:
    return EventRefused(Reason.BAD_STATE, f"the state given with it cannot be: {detail}")


# --- filled gaps ------------------------------------------------------------------------------------------


def _authorise_again(
    states: RoomStates, found: Sequence[ParsedEvent], waiting: Sequence[ParsedEvent], accepts: Accepted
) -> Filled:
    # ``waiting`` has the new events that have no state so far. They may be above events of ``found``.
    # A rejection is final. Only events that were accepted so far are authorised again.
    again = [
        structs.replace(event, rejection_given=accepts.as_stored or event.rejected_reason is not None)
        for event in found
    ]
    states.events.update((event.event_id, event) for event in again)
    states.assign([*again, *waiting])
    authorised = [states.events[event.event_id] for event in again if event.event_id in states.after]
    # ``assign`` has authorised all of them, and auth events that arrived since may have changed verdicts. But an event that still
    # has no state keeps its stored verdict for now.
    for event in found:
        if event.event_id not in states.after:
            states.events[event.event_id] = event
    return Filled(
        authorised,
        {event.event_id: event.stream_ordering for event in authorised if event.stream_ordering is not None},
        [e.event_id for e in found if e.rejected_reason is None and states.events[e.event_id].rejected_reason],
        waiting=[event.event_id for event in found if event.event_id in states.unproven],
        more=len(found) >= MOST_FILLED,
    )
