"""Events that name events of another room: those count as if they were not here, on every way in."""

import pytest

from events.integrity.repair import check_room
from events.models import Event
from events.persist import batch as storing
from events.persist.batch import with_state
from events.persist.gap_filling import resolve_room
from events.persist.room_cache import clear_caches
from events.sending.send import LocalRoom
from state.store import full_state
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom, public_room
from tests.support.persisted_rooms import current_state, extremities, gaps, incoming, persist

pytestmark = pytest.mark.django_db(transaction=True)
VERSIONS = ("1", "10", "12")


class EvesRoom(MadeRoom):
    """A room of another server, whose user may do everything there."""

    def __init__(self, version):
        super().__init__(version, "!eves:e.test", ruled=True)
        self.state("m.room.power_levels", "", {"users": {} if version == "12" else {EVE: 100}})
        self.state("m.room.history_visibility", "", {"history_visibility": "world_readable"})
        self.state("m.room.topic", "", {"topic": "mine"})

    def send(self, parts, prev=None, **flags):
        own = {"event_id": f"$eves{len(self.events)}:e.test"} if self.version == "1" else {}
        member = {"state_key": EVE} if parts["type"] == "m.room.member" else {}
        return super().send({**own, **parts, **member, "sender": EVE}, prev, **flags)


def rooms_of(state):
    return set(Event.objects.filter(event_id__in=state.values()).values_list("room_id", flat=True))


def is_of_itself(made):
    """No state of the room, current or at any event, has an entry of another one."""
    groups = Event.objects.filter(room_id=made.room_id, state_group__isnull=False).values_list("state_group", flat=True)
    found = [rooms_of(full_state(group)) for group in set(groups)] + [rooms_of(current_state(made.room_id))]
    return all(rooms <= {made.room_id} for rooms in found)


def by_eve(made, prev, **parts):
    """A message of a member of another server, on any prev events."""
    own = {"event_id": f"$evil{len(made.events)}:e.test"} if made.version == "1" else {}
    known = {"type": "m.room.message", "sender": EVE, "content": {"body": "x"}, **own, **parts}
    named = [event if isinstance(event, str) else event.event_id for event in prev]
    draft = {**known, "room_id": made.room_id, "prev_events": [], "auth_events": [], "depth": 9, "origin_server_ts": 1}
    auth = made._auth_events(draft, made.state_after(made.events[-1].event_id))
    return made.send({"auth_events": auth, **known}, prev=named)


@pytest.fixture(params=VERSIONS)
def rooms(request):
    """A room that the other server's user has joined, and hers, both stored."""
    made, hers = public_room(request.param), EvesRoom(request.param)
    made.member(EVE, "join")
    made.message()
    assert persist([incoming(event) for event in [*made.events, *hers.events]]).refused == []
    return made, hers


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("how", ["backfill", "given"])
def test_the_state_of_another_room_is_not_that_before_an_event(rooms, how, mixed, kept):
    """Without this she would bring her own room's state, in which she may do everything, into this one."""
    made, hers = rooms
    last = made.events[-1]
    if not kept:
        clear_caches()
    evil = by_eve(made, [hers.events[-1], last] if mixed else [hers.events[-1]])
    if how == "given":
        outcome = persist(with_state(incoming(evil), [event.json for event in made.events if event.is_state]))
    else:
        outcome = persist([incoming(evil, backfilled=True)])
    row = Event.objects.get(event_id=evil.event_id)
    assert outcome.refused == [] and row.rejected_reason is None
    assert row.state_unresolved is (how == "backfill") and is_of_itself(made)
    assert gaps(made.room_id) == [hers.events[-1].event_id] and resolve_room(made.room_id) == 0
    assert check_room(made.room_id).clean and check_room(hers.room_id).clean
    assert LocalRoom(made.room_id).send(ALICE, "m.room.message", {"body": "x"}).rejected_reason is None


def test_a_live_event_on_another_room_is_refused(rooms):
    made, hers = rooms
    evil = by_eve(made, [hers.events[-1], made.events[-1]])
    assert [refused.error.reason for refused in persist([incoming(evil)]).refused] == ["missing-prev-events"]
    assert extremities(made.room_id) == [made.events[-2].event_id]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_nor_when_the_other_room_comes_later(version, at_once):
    made, hers = public_room(version), EvesRoom(version)
    made.member(EVE, "join")
    made.message()
    evil = by_eve(made, [hers.events[-1]])
    first = [*(incoming(event) for event in made.events[:-1]), incoming(evil, backfilled=True)]
    rest = [incoming(event) for event in hers.events]
    for batch in [[*first, *rest]] if at_once else [first, rest]:
        assert persist(batch).refused == []
    assert resolve_room(made.room_id) == 0 and Event.objects.get(event_id=evil.event_id).state_unresolved
    assert is_of_itself(made) and gaps(made.room_id) == [hers.events[-1].event_id]
    assert check_room(made.room_id).clean and check_room(hers.room_id).clean


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_auth_events_of_another_room_count_for_nothing(version, first):
    """Not in what conflicting states resolve to."""
    made, hers = public_room(version), EvesRoom(version)
    before = made.events[-1]
    powers = next(event for event in hers.events if event.type == "m.room.power_levels")
    rule = next(event for event in made.events if event.type == "m.room.join_rules")
    named = [rule.event_id, powers.event_id]
    if version != "12":
        named.insert(0, made.create.event_id)
    join = {"type": "m.room.member", "state_key": EVE, "content": {"membership": "join"}}
    evil = by_eve(made, [before], **join, auth_events=[[e, {}] for e in named] if version == "1" else named)
    bob = made.member(BOB, "join", prev=[before])
    made.state("m.room.power_levels", "", {"users": {} if version == "12" else {ALICE: 100}, "ban": 60}, prev=[bob])
    own, other = [incoming(event) for event in made.events], [incoming(event) for event in hers.events]
    for batch in [other, own] if first else [own, other]:
        storing.persist(batch, verified=True, history_of="x.test")  # which may lack auth events
    row = Event.objects.get(event_id=evil.event_id)
    assert (row.rejected_reason is not None) is first
    local = LocalRoom(made.room_id).set_state(ALICE, "m.room.topic", {"topic": "x"})
    assert local.rejected_reason is None and is_of_itself(made)
    assert check_room(made.room_id).clean
