"""The predicate, as a page, over many rooms and as a view, against the rule asked of every event."""

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings

from events.models import CurrentState, ErasedUser, Event, ForgottenRoom, IgnoredUser, VisibleEvent
from events.visibility.access import access_parameters, forget_room, read_access
from events.visibility.explain import explain_visibility
from events.visibility.predicate_sql import ACCESS_ROWS, pruned, sees
from tests.oracle.answers import parsed
from tests.support.effort import examples
from tests.support.emptying import empty_tables
from tests.support.generated_rooms import USERS, forked_rooms
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.room_data import ROOM_NAMES
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db

STRANGER = "@stranger:nowhere.test"
_JOINED = (
    f"SELECT e.event_id, {pruned()} FROM {ACCESS_ROWS} a JOIN events_event e ON e.room_id = a.room_id WHERE {sees()}"
)


def by_rule(user_id, room_id):
    """Event -> whether it is pruned for the user alone, of what the rule shows."""
    ids = list(Event.objects.filter(room_id=room_id).values_list("event_id", flat=True))
    return {found.event_id: found.pruned for found in explain_visibility(user_id, ids) if found.seen}


def by_join(user_id, room_ids):
    """The same from the predicate over rooms."""
    access = read_access(user_id, room_ids)
    with connection.cursor() as cursor:
        cursor.execute(_JOINED, access_parameters(user_id, access.values()))
        return dict(cursor.fetchall())


def by_view(user_id, room_id):
    """Event -> whether the view tells to redact it."""
    return dict(VisibleEvent.objects.filter(user_id=user_id, room_id=room_id).values_list("event_id", "redacted"))


def compare(user_id, room_id):
    """All ways must tell the same; returns how many events the user sees.

    The view has those users who have a membership in the current state.
    """
    rule = by_rule(user_id, room_id)
    assert by_join(user_id, [room_id]) == rule
    redacted = set(Event.objects.filter(room_id=room_id, redacted_by__isnull=False).values_list("event_id", flat=True))
    in_view = CurrentState.objects.filter(room_id=room_id, type="m.room.member", state_key=user_id).exists()
    wanted = {event_id: alone or event_id in redacted for event_id, alone in rule.items()}
    assert by_view(user_id, room_id) == (wanted if in_view else {})
    return len(rule)


@pytest.mark.parametrize("room", [room for room in ROOM_NAMES if room != "large_v10"])
def test_predicate_and_view_agree_with_the_rule_on_shipped_rooms(room):
    """Then once more with erased users, and with the room forgotten by all who can."""
    events = parsed(room)
    store_room(events)
    room_id = events[0].room_id
    members = sorted({event.state_key for event in events if event.type == "m.room.member"})
    seen = [compare(user_id, room_id) for user_id in [STRANGER, *members[:: len(members) // 5 + 1]]]
    assert max(seen) > 20
    ErasedUser.objects.bulk_create(ErasedUser(user_id=user_id) for user_id in members[::2])
    ForgottenRoom.objects.bulk_create(
        ForgottenRoom(user_id=row.state_key, room_id=room_id, event_id=row.event_id)
        for row in CurrentState.objects.filter(room_id=room_id, membership__in=("leave", "ban"))
    )
    for user_id in members[1 :: len(members) // 5 + 1]:
        compare(user_id, room_id)


@pytest.mark.django_db(transaction=True)
def test_largest_room_is_read_by_indexes():
    """A page of the view stops after its rows; one event, a user's newest events and a join begin with what is given."""
    empty_tables()  # pages of rows that other tests rolled back would make the planner choose another plan
    events = parsed("large_v10")
    store_room(events)
    room_id = events[0].room_id
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    member = CurrentState.objects.filter(room_id=room_id, membership="join").order_by("state_key")[50].state_key
    assert compare(member, room_id) > 5_000
    mine = VisibleEvent.objects.filter(user_id=member)
    page = mine.filter(room_id=room_id).order_by("-topological_ordering", "-stream_ordering")[:100].explain()
    assert "Index Scan Backward using events_event_timeline" in page and "Sort Key: e." not in page
    asked = {
        "page": page,
        "newest": mine.filter(stream_ordering__gt=6_600).order_by("stream_ordering")[:50].explain(),
        "who sees an event": VisibleEvent.objects.filter(event_id=events[-1].event_id).explain(),
        "join": Event.objects.filter(event_id__in=mine.filter(stream_ordering__gt=6_600).values("event_id")).explain(),
    }
    for name, plan in asked.items():
        assert "Seq Scan on events_event " not in plan and "Seq Scan on events_currentstate" not in plan, (name, plan)


def public_room():
    """Merges of its forks keep who has joined on one side."""
    made = MadeRoom()
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    return made


@pytest.mark.parametrize("membership", ["ban", "leave"])
def test_peeking_member_of_once_sees_of_shared_parts_what_came_while_they_were_joined(membership):
    """By the state at each event: one on a fork that does not know of the join is not theirs."""
    made = public_room()
    fork = made.events[-1]
    before = made.message()
    join = made.member(BOB, "join")
    during = made.message()
    apart = made.message(prev=[fork])
    out = made.member(BOB, membership, prev=[during, apart], sender=ALICE)
    after = made.message()
    world = made.state("m.room.history_visibility", "", {"history_visibility": "world_readable"})
    store_room(made.events)
    if membership == "leave":
        forget_room(BOB, made.room_id)
    assert compare(BOB, made.room_id) == 4
    shown = by_join(BOB, [made.room_id])
    assert set(shown) == {event.event_id for event in (join, during, out, world)}
    assert {before.event_id, apart.event_id, after.event_id} & set(shown) == set()


def test_single_rows_overrule_the_users_ranges():
    """In a closed room: events of a fork that does not know of a join, and of one that does not know of a leave."""
    made = public_room()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    fork = made.events[-1]
    join = made.member(BOB, "join")
    hidden = made.message(prev=[fork])
    made.member(BOB, "leave", prev=[join])
    shown = made.message(prev=[join])
    made.member(BOB, "join", prev=[made.events[-2], shown])
    store_room(made.events)
    compare(BOB, made.room_id)
    found = by_join(BOB, [made.room_id])
    assert hidden.event_id not in found and shown.event_id in found


@pytest.mark.parametrize("setting", ["world_readable", "shared"])
def test_closing_change_is_seen_by_its_old_side_until_its_sender_is_erased(setting):
    made = public_room()
    made.state("m.room.history_visibility", "", {"history_visibility": setting})
    change = made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.member(BOB, "join")
    store_room(made.events)
    compare(BOB, made.room_id)
    assert change.event_id in by_join(BOB, [made.room_id])
    ErasedUser.objects.create(user_id=ALICE)
    compare(BOB, made.room_id)
    assert change.event_id not in by_join(BOB, [made.room_id])


def test_events_of_erased_users_are_pruned_for_who_was_not_joined_at_them():
    """Also where the ranges of a shared room do not tell who was joined: on a fork."""
    made = public_room()
    fork = made.events[-1]
    join = made.member(BOB, "join")
    apart, there = made.message(prev=[fork]), made.message(prev=[join])
    store_room(made.events)
    ErasedUser.objects.create(user_id=ALICE)
    compare(BOB, made.room_id)
    found = by_join(BOB, [made.room_id])
    assert found[apart.event_id] and not found[there.event_id]


def test_many_rooms_are_read_at_once_and_only_those_that_may_be():
    rooms = [MadeRoom(room_id=f"!{number}:a.test") for number in range(3)]
    rooms[1].member(BOB, "join")
    rooms[2].state("m.room.history_visibility", "", {"history_visibility": "world_readable"})
    for number, made in enumerate(rooms):
        store_room(made.events, first_position=2 + 10 * number)
    found = set(by_join(BOB, [made.room_id for made in rooms]))
    assert found == set(by_rule(BOB, rooms[1].room_id)) | set(by_rule(BOB, rooms[2].room_id))
    assert len(found) == 4


@settings(
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=forked_rooms())
def test_predicate_and_view_agree_with_the_rule_on_generated_rooms(made):
    with transaction.atomic():
        store_room(made.events)
        for user_id in (*USERS, STRANGER):
            compare(user_id, made.room_id)
        ErasedUser.objects.create(user_id=ALICE)
        ErasedUser.objects.create(user_id=BOB)
        IgnoredUser.objects.create(user_id=BOB, ignored_user_id=ALICE)
        for row in CurrentState.objects.filter(room_id=made.room_id, membership__in=("leave", "ban")):
            ForgottenRoom.objects.create(user_id=row.state_key, room_id=made.room_id, event_id=row.event_id)
        for user_id in (*USERS, STRANGER):
            compare(user_id, made.room_id)
        transaction.set_rollback(True)
