"""Ranges that grow with every batch of ``persist``, against the whole history's, and against the rule."""

from itertools import pairwise

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.format.parsing import ParsedEvent
from events.models import Event, EventVisibility, Room
from events.persist.rebuild_visibility import rebuild_visibility, recomputed_ranges
from events.persist.room_cache import clear_caches
from events.visibility.ranges import in_order
from events.visibility.same_ranges import show_the_same
from tests.integration.events.test_visible_sql import STRANGER, by_join, compare
from tests.support.effort import examples
from tests.support.generated_rooms import USERS, forked_rooms
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.ranges import accepted_places, stored_ranges
from tests.support.room_results import room_history

pytestmark = pytest.mark.django_db(transaction=True)


def as_they_came(made):
    """The stored events of a made room with their verdicts, by their positions."""
    by_id = {event.event_id: event for event in made.events}
    columns = ("event_id", "rejected_reason", "soft_failed", "stream_ordering")
    told = {"rejection_given": True, "soft_failure_given": True}
    for event_id, reason, soft_failed, place in Event.objects.order_by("stream_ordering").values_list(*columns):
        event = by_id[event_id]
        known = {name: getattr(event, name) for name in ParsedEvent.__struct_fields__}
        yield ParsedEvent(
            **{**known, **told, "rejected_reason": reason, "soft_failed": soft_failed, "stream_ordering": place}
        )


FOLLOW_EACH_OTHER = {"shared": "room", "world": "room", "joined": "user", "invited": "user"}


def overlaps(rows):
    """Ranges that cover a position twice, where the predicate looks only at the one that begins last before an event.

    An own event can end an invite and begin a membership.
    """
    follow = {}
    for row in rows:
        follow.setdefault((row.user_id, FOLLOW_EACH_OTHER.get(row.kind, row.kind)), []).append(row)
    for (_, kind), found in follow.items():
        found.sort(key=lambda row: row.first)
        for one, other in pairwise(found):
            shared = 1 if kind == "user" and one.kind != other.kind and one.first < other.first else 0
            if one.last is None or one.last >= other.first + shared:
                yield one, other


@settings(
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=forked_rooms(most_events=20, verdicts=False, backfill=False), batch=st.sampled_from([1, 3, 50]))
def test_ranges_do_not_depend_on_the_way(made, batch):
    """One by one, in batches, as a whole history, and made anew: the same rows; and they tell what the rule tells."""
    with transaction.atomic():
        persist_all(made.events, batch)
        events = list(as_they_came(made))
        places = [event.stream_ordering for event in events]
        wanted = in_order(
            row.__class__(row.user_id, row.kind, places[row.first], None if row.last is None else places[row.last])
            for row in room_history(events).visibility
        )
        assert stored_ranges(made.room_id) == wanted == recomputed_ranges(made.room_id)
        for user_id in (*USERS, STRANGER):
            compare(user_id, made.room_id)
        transaction.set_rollback(True)
    clear_caches()


@settings(
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    made=forked_rooms(most_events=20, verdicts=False, backfill=False),
    old=st.sets(st.integers(4, 20), max_size=6),
    batch=st.sampled_from([1, 4]),
)
def test_backfilled_events_among_live_ones_are_seen_by_whom_the_rule_lets(made, old, batch):
    with transaction.atomic():
        events = [incoming(event, backfilled=number in old) for number, event in enumerate(made.events)]
        for start in range(0, len(events), batch):
            persist(events[start : start + batch])
        for _ in range(2):  # as kept up to date, and made anew; backfilled ones may be laid out differently
            assert list(overlaps(stored_ranges(made.room_id))) == []
            for user_id in (*USERS, STRANGER):
                compare(user_id, made.room_id)
            rebuild_visibility(made.room_id)
        transaction.set_rollback(True)
    clear_caches()


def test_an_old_join_that_nothing_stands_on_opens_no_range_when_ranges_are_made_anew():
    """The room's current state does not know it; an open range would show its user all that is still to come."""
    made = MadeRoom(ruled=True)
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    below = made.events[-1]
    persist_all(made.events, 1)
    join = made.member(BOB, "join", prev=[below])
    persist([incoming(join, backfilled=True)])
    persist([incoming(made.message(prev=[below]))])
    rebuild_visibility(made.room_id)
    assert [
        (row.user_id, row.last) for row in stored_ranges(made.room_id) if row.user_id == BOB and row.first > 0
    ] == []
    persist([incoming(made.message(prev=[made.events[-1]]))])
    compare(BOB, made.room_id)


def test_an_old_event_below_a_rejected_one_covers_no_leaf_when_ranges_are_made_anew():
    made = MadeRoom(ruled=True)
    made.state("m.room.history_visibility", "", {"history_visibility": "world_readable"})
    persist_all(made.events, 1)
    persist([incoming(made.state("m.room.history_visibility", "", {"history_visibility": "shared"}), backfilled=True)])
    persist([incoming(made.message(sender="@eve:e.test"))])
    assert Event.objects.filter(room_id=made.room_id, rejected_reason__isnull=False).count() == 1
    assert stored_ranges(made.room_id) == recomputed_ranges(made.room_id)


@pytest.mark.parametrize("batch", [1, 3])
def test_what_old_events_connect_is_no_leaf_for_the_rest_of_a_batch(batch):
    """Else the state below them counts for the current one, and a later ban on joining undoes joins of before."""
    made = MadeRoom(ruled=True)
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    persist_all(made.events, 1)
    persist([incoming(made.member(BOB, "join"), backfilled=True)])
    live = [made.message(), made.state("m.room.join_rules", "", {"join_rule": "invite"}), made.message()]
    for start in range(0, len(live), batch):
        persist([incoming(event) for event in live[start : start + batch]])
    stored, anew = stored_ranges(made.room_id), recomputed_ranges(made.room_id)
    assert [(row.kind, row.last) for row in stored if row.user_id == BOB and row.first > 0] == [("joined", None)]
    assert show_the_same(stored, anew, accepted_places(made.room_id))


def test_message_on_top_writes_no_range():
    made = MadeRoom(ruled=True)
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    for setting in ("joined", "shared", "world_readable", "invited"):
        made.state("m.room.history_visibility", "", {"history_visibility": setting})
        made.member(BOB, "join")
        persist_all([event for event in made.events if not Event.objects.filter(event_id=event.event_id).exists()])
        before = stored_ranges(made.room_id)
        persist([incoming(made.message())])
        assert stored_ranges(made.room_id) == before, setting


def test_memberships_that_come_and_go_one_by_one_leave_the_same_ranges():
    """The cut of a leave goes with the rejoin, and so does what an invite opened."""
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": "invited"})
    by_alice = {"invite", "ban", "unban"}
    for act in ("join", "leave", "join", "leave", "invite", "leave", "invite", "join", "ban", "unban", "join"):
        sender = ALICE if act in by_alice else None
        made.member(BOB, "leave" if act == "unban" else act, sender=sender)
        made.message()
    for number, event in enumerate(made.events):
        assert persist([incoming(event)]).refused == [], number
        if number > 3:
            assert stored_ranges(made.room_id) == recomputed_ranges(made.room_id), number
    assert not Event.objects.filter(rejected_reason__isnull=False).exists()
    rows = [row for row in stored_ranges(made.room_id) if row.user_id == BOB]
    assert {"joined", "invited"} <= {row.kind for row in rows} and "cut" not in {row.kind for row in rows}
    compare(BOB, made.room_id)


def test_membership_that_comes_while_the_current_state_waits_for_the_end_of_the_batch_has_its_range():
    """With many leaves the current state is worked out once a batch; the next batch goes on from it."""
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    base = made.events[-1]
    forks = [made.topic(str(number), prev=[base]) for number in range(55)]
    join = made.member(BOB, "join", prev=[base])
    assert persist([incoming(event) for event in made.events]).refused == []
    message = made.message(prev=[join, *forks[:5]])
    persist([incoming(message)])
    assert compare(BOB, made.room_id) > 0
    assert by_join(BOB, [made.room_id]).keys() >= {join.event_id, message.event_id}
    assert rebuild_visibility(made.room_id) and compare(BOB, made.room_id) > 0


def test_redaction_before_its_target_is_shown_once_that_is_here():
    made = MadeRoom(ruled=True)
    target = made.message()
    redaction = made.redaction(target, prev=[made.alice])
    persist_all([event for event in made.events if event is not target])
    assert EventVisibility.objects.filter(kind="withheld").count() == 1
    persist([incoming(target)])
    assert EventVisibility.objects.filter(kind="withheld").count() == 0
    assert redaction.event_id in Event.objects.values_list("redacted_by", flat=True)


def test_gap_that_is_filled_makes_the_ranges_known():
    """Live events above a gap: nobody knows who sees what until what is below them comes."""
    made = MadeRoom(ruled=True)
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.message()
    below = made.message()
    above = [made.message(), made.message()]
    whole = [event for event in made.events if event is not below and event not in above]
    persist_all(whole)
    persist([incoming(event, backfilled=True) for event in above])
    persist([incoming(below, backfilled=True)])
    assert not Room.objects.get().visibility_unresolved
    for user_id in (ALICE, STRANGER):
        compare(user_id, made.room_id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM events_event WHERE state_unresolved")
        assert cursor.fetchone() == (0,)
