"""Why a user sees an event or does not: the rule of visibility, asked of stored events.

The answer is about the event alone, at its place in the graph. Whether the user reaches it at all (a room that may not
be read, events after the own leave) is told beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from events.errors import StateUnresolved, UnknownEvent
from events.models import CurrentState, ErasedUser, Event, EventVisibility, Room
from events.redaction_rules import may_redact
from events.room_visibility import HISTORY_VISIBILITY, Viewer, history_visibility, membership, sight_of
from events.stored_states import StoredStates, groups_of_events
from events.visibility_rules import Answer, Verdict, for_client, known_visibility
from state.auth_rules import AuthRules
from state.auth_selection import CREATE, JOIN_RULES, POWER_LEVELS, State
from state.models import StateGroup
from state.room_versions import room_version

__all__ = ["Access", "Explanation", "explain_visibility"]

_EVENTS_PER_ROUND = 200


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a user sees of an event and why.

    ``pruned``: only in pruned form, because the sender is erased and the user was not joined. ``redacted_by``: everybody sees it
    pruned. ``peeking``: the user reads without being or having been a member. ``reachable``: the user may read the room now,
    and the event does not come after the own leave.
    """

    event_id: str
    allowed: bool
    pruned: bool
    rule: str
    membership: str | None
    history_visibility: str | None
    state_group: int | None
    peeking: bool
    reachable: bool
    redacted_by: str | None


def explain_visibility(
    user_id: str, event_ids: Iterable[str], using: str = "default"
) -> Iterator[Explanation | UnknownEvent | StateUnresolved]:
    """An answer, or the reason why there is none, for each event in the order given."""
    rest = iter(event_ids)
    while asked := list(islice(rest, _EVENTS_PER_ROUND)):
        found = _Round(user_id, asked, using)
        for event_id in asked:
            try:
                yield found.explain(event_id)
            except (UnknownEvent, StateUnresolved) as error:
                yield error


class _Round:
    """Some events, with everything that their answers need read at once."""

    def __init__(self, user_id: str, event_ids: Sequence[str], using: str) -> None:
        self._user_id = user_id
        self._using = using
        events = list(Event.objects.using(using).filter(event_id__in=event_ids))
        self._events = {event.event_id: event for event in events}
        self._groups = groups_of_events(list(self._events), using)
        below = StateGroup.objects.using(using).filter(id__in=set(self._groups.values()))
        self._below = dict(below.values_list("id", "prev_group"))
        groups = {*self._groups.values(), *(group for group in self._below.values() if group is not None)}
        keys = [("m.room.member", user_id), HISTORY_VISIBILITY, JOIN_RULES]
        if any(event.redacts is not None for event in events):
            keys += [CREATE, POWER_LEVELS]
        self._states = StoredStates(groups, keys, using)
        senders = {event.sender for event in events}
        erased = ErasedUser.objects.using(using).filter(user_id__in=senders)
        self._erased = frozenset(erased.values_list("user_id", flat=True))
        self._rooms: dict[str, Access] = {}

    def explain(self, event_id: str) -> Explanation:
        event = self._events.get(event_id)
        if event is None:
            raise UnknownEvent(f"There is no event {event_id}.")
        if event.state_unresolved:
            raise StateUnresolved(f"The state at {event_id} is not known: events that it builds on are not here.")
        group = self._groups.get(event_id)
        after = self._states.state(group)
        access = self._access(event.room_id)
        verdict = self._verdict(event, after, group, access.peeking)
        setting = known_visibility(history_visibility(after)) if after is not None else None
        return Explanation(
            event_id=event_id,
            allowed=verdict.answer is not Answer.HIDDEN,
            pruned=verdict.answer is Answer.REDACTED,
            rule=verdict.rule,
            membership=membership(after, self._user_id) if after is not None else None,
            history_visibility=setting,
            state_group=group,
            peeking=access.peeking,
            reachable=access.reaches(event),
            redacted_by=event.redacted_by,
        )

    def _verdict(self, event: Event, after: State | None, group: int | None, peeking: bool) -> Verdict:
        if event.rejected_reason is not None:
            return Verdict(Answer.HIDDEN, "rejected")
        before = after
        if event.state_key is not None and group is not None:
            before = self._states.state(self._below[group])
        if event.redacts is not None and not self._redacts_something(event, before):
            return Verdict(Answer.HIDDEN, "redaction_without_effect")
        viewer = Viewer(self._user_id, peeking, erased=self._erased)
        return for_client(sight_of(event, viewer, before, after))

    def _redacts_something(self, redaction: Event, before: State | None) -> bool:
        """Whether the target is here, in the same room, and the sender may redact it."""
        target = Event.objects.using(self._using).filter(event_id=redaction.redacts).first()
        if target is None or target.room_id != redaction.room_id:
            return False
        version = room_version(Room.objects.using(self._using).get(pk=redaction.room_id).room_version)
        levels = AuthRules(version).levels(before, before.get(CREATE)) if before is not None else None
        return may_redact(redaction, target, version, levels)

    def _access(self, room_id: str) -> Access:
        if room_id not in self._rooms:
            self._rooms[room_id] = Access.of(self._user_id, room_id, self._using)
        return self._rooms[room_id]


@dataclass(frozen=True, slots=True)
class Access:
    """Whether and how far a user may read a room now.

    ``peeking``: without being or having been a member, what is world readable.
    """

    peeking: bool
    readable: bool
    cut: int | None
    """Stream position of the own leave; events above it are out of reach."""

    @classmethod
    def of(cls, user_id: str, room_id: str, using: str) -> Access:
        """By the current membership; those who are neither joined nor have left may read a room that is world readable."""
        state = CurrentState.objects.using(using).filter(room_id=room_id)
        current = state.filter(type="m.room.member", state_key=user_id).values_list("membership", flat=True).first()
        if current in ("join", "leave"):
            cuts = EventVisibility.objects.using(using).filter(room_id=room_id, user_id=user_id, kind="cut")
            return cls(False, True, cuts.values_list("first", flat=True).first() if current == "leave" else None)
        world = EventVisibility.objects.using(using).filter(room_id=room_id, user_id=None, kind="world", last=None)
        return cls(True, world.exists(), None)

    def reaches(self, event: Event) -> bool:
        return self.readable and (self.cut is None or event.stream_ordering <= self.cut)
