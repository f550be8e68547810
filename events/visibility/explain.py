"""Explains why a user sees an event or does not.

    explain_visibility("@bob:b", ["$e"])  ->  rule not_visible, membership leave, history_visibility joined

The answer is computed from the states before and after each event, and not from ranges. So tests can compare ranges
with it. It names the rule that decided, in the words of ``docs/reference/visibility.md``, and the way in which the user
has access to the event. Ignored senders and retention are taken into account.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from events.arguments import can_be_stored
from events.errors import StateUnresolved, UnknownEvent
from events.format.redaction import REDACTION, may_redact
from events.models import ErasedUser, Event, IgnoredUser, Room
from events.stored_states import StoredStates
from events.visibility.access import Access, Reach, read_access
from events.visibility.rule import Answer, Rule, Verdict, for_client, known_visibility
from events.visibility.viewer import HISTORY_VISIBILITY, Viewer, history_visibility, membership, rule_input
from state.models import StateGroup
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import CREATE, JOIN_RULES, POWER_LEVELS, State
from state.rules.room_versions import room_version
from streams.db.consistent_read import read_only_snapshot

_EVENTS_PER_ROUND = 200


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer for one event and one user, with the reasons.

    ``allowed``: the room's state at the event lets the user see it. ``reach`` is the way in which the user has access
    to the event now, or the reason why they have none. ``pruned``: the user sees the redacted form, because the sender
    is erased and the user was not joined. ``redacted_by`` is the redaction because of which all users see the redacted
    form.
    """

    event_id: str
    allowed: bool
    pruned: bool
    rule: Rule
    membership: str | None
    history_visibility: str | None
    state_group: int | None
    reach: Reach
    peeking: bool
    redacted_by: str | None

    @property
    def reachable(self) -> bool:
        return self.reach.within

    @property
    def seen(self) -> bool:
        """True if pages and syncs show it to the user.

        Exception: pages that are read backwards begin at the user's leave, and skip events of a higher depth.
        """
        return self.allowed and self.reachable


def explain_visibility(
    user_id: str, event_ids: Iterable[str], using: str = "default", now_ms: int | None = None
) -> Iterator[Explanation | UnknownEvent | StateUnresolved]:
    """Yields for each event, in the given order, an ``Explanation``, or the error that prevented one.

    ``now_ms`` is the time for which retention is evaluated, by default the present.
    """
    rest = iter(event_ids)
    user_id = user_id if can_be_stored(user_id) else ""  # such a user is in no room
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    while chunk := list(islice(rest, _EVENTS_PER_ROUND)):
        # One snapshot for all queries of a round. Without it: A reads an event with its state group, B compacts the room's groups
        # and commits, A looks for the event's old group in vain.
        with read_only_snapshot(using):
            found = _Round(user_id, [event_id for event_id in chunk if can_be_stored(event_id)], using, now_ms)
        for event_id in chunk:
            try:
                yield found.explain(event_id)
            except (UnknownEvent, StateUnresolved) as error:
                yield error


class _Round:
    # Some events to explain. A few queries read what the answers to all of them need.
    def __init__(self, user_id: str, event_ids: Sequence[str], using: str, now_ms: int) -> None:
        self._user_id = user_id
        events = list(Event.objects.using(using).filter(event_id__in=event_ids))
        self._events = {event.event_id: event for event in events}
        after = {event.state_group for event in events if event.state_group is not None}
        self._group_below = dict(StateGroup.objects.using(using).filter(id__in=after).values_list("id", "prev_group"))
        groups = {*after, *(group for group in self._group_below.values() if group is not None)}
        keys = [("m.room.member", user_id), HISTORY_VISIBILITY, JOIN_RULES]
        redacted = {event.redacts for event in events if event.redacts is not None}
        if redacted:
            keys += [CREATE, POWER_LEVELS]
        self._states = StoredStates(groups, keys, using)
        self._targets = {target.event_id: target for target in Event.objects.using(using).filter(event_id__in=redacted)}
        rooms = {event.room_id for event in events}
        stored = Room.objects.using(using).filter(room_id__in=rooms)
        self._versions = dict(stored.values_list("room_id", "room_version"))
        senders = {event.sender for event in events}
        erased = ErasedUser.objects.using(using).filter(user_id__in=senders)
        self._erased = frozenset(erased.values_list("user_id", flat=True))
        ignored = IgnoredUser.objects.using(using).filter(user_id=user_id, ignored_user_id__in=senders)
        self._ignored = frozenset(ignored.values_list("ignored_user_id", flat=True))
        self._access = read_access(user_id, rooms, using, now_ms)

    def explain(self, event_id: str) -> Explanation:
        event = self._events.get(event_id)
        if event is None:
            raise UnknownEvent(f"There is no event {event_id!r:.300}.")
        if event.state_unresolved:
            raise StateUnresolved(f"The state at {event_id} is not known: events that it builds on are not here.")
        after = self._states.state(event.state_group)
        access = self._access[event.room_id]
        verdict = self._verdict(event, after, access)
        setting = known_visibility(history_visibility(after)) if after is not None else None
        reach = access.reach(event.stream_ordering, event.topological_ordering)
        return Explanation(
            event_id=event_id,
            allowed=verdict.answer is not Answer.HIDDEN,
            pruned=verdict.answer is Answer.REDACTED,
            rule=verdict.rule,
            membership=membership(after, self._user_id) if after is not None else None,
            history_visibility=setting,
            state_group=event.state_group,
            reach=Reach.OUTLIER if event.outlier else reach,
            peeking=access.peeking,
            redacted_by=event.redacted_by,
        )

    def _verdict(self, event: Event, after: State | None, access: Access) -> Verdict:
        if event.rejected_reason is not None:
            return Verdict(Answer.HIDDEN, Rule.REJECTED)
        before = after
        if event.state_key is not None and event.state_group is not None:
            before = self._states.state(self._group_below[event.state_group])
        if event.type == REDACTION and not self._redacts_something(event, before):
            return Verdict(Answer.HIDDEN, Rule.REDACTION_WITHOUT_EFFECT)
        viewer = Viewer(self._user_id, access.peeking, self._ignored, self._erased)
        given = rule_input(event, viewer, before, after)
        expired = access.kept_since is not None and event.origin_server_ts < access.kept_since
        return for_client(replace(given, expired=expired))

    def _redacts_something(self, redaction: Event, before: State | None) -> bool:
        target = self._targets.get(redaction.redacts or "")
        if target is None:
            return False
        version = room_version(self._versions[redaction.room_id])
        levels = AuthRules(version).levels(before, before.get(CREATE)) if before is not None else None
        return may_redact(redaction, target, version, levels)
