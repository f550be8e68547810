"""Every kind of damage is found by the check and mended by the repair, and then every answer is what it was."""

import pytest
from django.db import connection
from django.db.models import QuerySet

from events.integrity.compare import SUBJECTS
from events.integrity.repair import check_room, resync_room
from events.models import (
    BackwardExtremity,
    CurrentState,
    Event,
    EventAuth,
    EventEdge,
    EventVisibility,
    ForwardExtremity,
    Room,
)
from events.persist.room_cache import clear_caches
from events.reading.pages import timeline_of
from events.reading.timeline import state_at
from state.models import StateGroup, StateGroupDelta
from tests.integration.events.test_gap_filling import backfill, with_gap
from tests.integration.events.test_live_is_bulk import USERS, generated
from tests.support.persisted_rooms import current_state, extremities, gaps, persist_all, verdicts

pytestmark = pytest.mark.django_db


def answers(room_id):
    """What readers are told of a room."""
    events = Event.objects.filter(room_id=room_id).order_by("stream_ordering")
    known = [e.event_id for e in events if not e.outlier and not e.state_unresolved]
    return {
        "states": [(found.before, found.after) for found in map(state_at, known)],
        "columns": [{k: v for k, v in vars(e).items() if k not in ("_state", "state_group")} for e in events],
        "current": current_state(room_id),
        "graph": (extremities(room_id), gaps(room_id), verdicts(room_id)),
        "seen": {user: [entry.event_id for entry in timeline_of(user, room_id)] for user in USERS[:3]},
        "flags": Room.objects.filter(pk=room_id).values_list(
            "creator", "create_event_id", "current_state_unresolved", "visibility_unresolved"
        )[0],
    }


def of_room(room_id, **about):
    return Event.objects.filter(room_id=room_id, outlier=False, **about).order_by("stream_ordering")


def deltas(room_id):
    chains = StateGroup.objects.filter(room_id=room_id).values("chain")
    return StateGroupDelta.objects.filter(chain__in=chains).order_by("chain", "state_group", "type", "state_key")


def change(rows, **values):
    """Of one row, by its primary key."""
    assert QuerySet(type(rows[0])).filter(pk=rows[0].pk).update(**values) == 1


def wrong_delta(room_id):
    change(deltas(room_id).filter(type="m.room.power_levels"), event_id="$wrong")


def lost_delta(room_id):
    row = deltas(room_id).filter(type="m.room.member")[0]
    StateGroupDelta.objects.filter(pk=row.pk).delete()


def missing_group(room_id):
    group = of_room(room_id, state_key__isnull=False)[5].state_group
    StateGroupDelta.objects.filter(state_group=group).delete()
    StateGroup.objects.filter(pk=group).delete()


def missing_row_of_a_group(room_id):
    StateGroup.objects.filter(pk=of_room(room_id)[4].state_group).delete()


def wrong_group_of_an_event(room_id):
    first, last = of_room(room_id)[1], of_room(room_id).reverse()[0]
    Event.objects.writable().filter(pk=of_room(room_id)[9].pk).update(
        state_group=first.state_group if of_room(room_id)[9].state_group != first.state_group else last.state_group
    )


def lost_group_of_an_event(room_id):
    Event.objects.writable().filter(pk=of_room(room_id)[9].pk).update(state_group=None, state_unresolved=True)


def wrong_below(room_id):
    group = of_room(room_id, state_key__isnull=False, rejected_reason=None)[7].state_group
    StateGroup.objects.filter(pk=group).update(prev_group=of_room(room_id)[0].state_group)


def unresolved_flag(room_id):
    Event.objects.writable().filter(pk=of_room(room_id)[3].pk).update(state_unresolved=True)


def wrong_current_state(room_id):
    CurrentState.objects.filter(room_id=room_id, type="m.room.power_levels").update(event_id="$wrong")


def wrong_membership(room_id):
    CurrentState.objects.filter(room_id=room_id, type="m.room.member", state_key=USERS[0]).update(membership="ban")


def missing_current_state(room_id):
    CurrentState.objects.filter(room_id=room_id, type="m.room.member", state_key=USERS[0]).delete()


def extra_current_state(room_id):
    CurrentState.objects.create(room_id=room_id, type="m.room.name", state_key="x y", event_id="$extra")


def wrong_redacted_by(room_id):
    Event.objects.writable().filter(pk=of_room(room_id, redacted_by=None)[6].pk).update(redacted_by="$nothing")


def lost_redacted_by(room_id):
    assert Event.objects.writable().filter(room_id=room_id, redacted_by__isnull=False).update(redacted_by=None)


def wrong_columns(room_id):
    Event.objects.writable().filter(pk=of_room(room_id)[8].pk).update(
        sender="@x:y", topological_ordering=99, type="m.x"
    )


def lost_edge(room_id):
    edge = EventEdge.objects.filter(event_id=of_room(room_id)[5].event_id)[0]
    EventEdge.objects.filter(pk=edge.pk).delete()


def extra_edge(room_id):
    EventEdge.objects.create(event_id=of_room(room_id)[5].event_id, prev_event_id="$other")


def lost_auth(room_id):
    EventAuth.objects.filter(event_id=of_room(room_id)[1].event_id).delete()


def wrong_auth(room_id):
    EventAuth.objects.filter(event_id=of_room(room_id)[2].event_id).update(auth_event_ids=["$wrong"])


def wrong_room_flags(room_id):
    Room.objects.filter(pk=room_id).update(creator="@x:y", create_event_id="$x", current_state_unresolved=True)


def lost_extremity(room_id):
    ForwardExtremity.objects.filter(room_id=room_id).order_by("pk")[0].delete()


def extra_extremity(room_id):
    ForwardExtremity.objects.create(room_id=room_id, event_id=of_room(room_id)[0].event_id)


def extra_gap(room_id):
    BackwardExtremity.objects.create(room_id=room_id, event_id="$gap")


def wrong_range(room_id):
    row = EventVisibility.objects.filter(room_id=room_id, kind="joined").order_by("pk")[0]
    EventVisibility.objects.filter(pk=row.pk).update(first=row.first + 3, last=None)


def missing_ranges(room_id):
    EventVisibility.objects.filter(room_id=room_id).delete()


def extra_range(room_id):
    EventVisibility.objects.create(room_id=room_id, user_id="@spy:d.test", kind="joined", first=1, last=None)


def wrong_visibility_flag(room_id):
    EventVisibility.objects.filter(room_id=room_id).delete()
    Room.objects.filter(pk=room_id).update(visibility_unresolved=True)


DAMAGE = {
    "state": [
        wrong_delta, lost_delta, missing_group, missing_row_of_a_group, wrong_group_of_an_event, lost_group_of_an_event,
        wrong_below, unresolved_flag, wrong_current_state, wrong_membership, missing_current_state, extra_current_state,
        wrong_redacted_by, lost_redacted_by, wrong_columns, lost_edge, extra_edge, lost_auth, wrong_auth, wrong_room_flags,
    ],
    "extremities": [lost_extremity, extra_extremity, extra_gap],
    "visibility": [wrong_range, missing_ranges, extra_range, wrong_visibility_flag],
}  # fmt: skip
CASES = [pytest.param(subject, damage, id=damage.__name__) for subject, all_ in DAMAGE.items() for damage in all_]


@pytest.mark.parametrize("subject, damage", CASES)
def test_damage_is_found_and_mended(subject, damage):
    made = generated(2)
    persist_all(made.events, 100)
    before = answers(made.room_id)
    damage(made.room_id)
    clear_caches()
    report = check_room(made.room_id)
    assert {found for found, _ in report.totals} == {subject} and report.differences
    dry = resync_room(made.room_id, subject, dry_run=True)
    assert dry.before.totals == dry.after.totals == report.totals == check_room(made.room_id).totals
    done = resync_room(made.room_id, subject)
    assert (done.before.totals, done.after.totals) == (report.totals, {})
    assert answers(made.room_id) == before
    said = made.message()
    assert persist_all([said])[0].refused == [] and check_room(made.room_id).clean


def test_only_what_was_asked_for_is_mended():
    made = generated(3)
    persist_all(made.events, 100)
    for damage in (wrong_delta, lost_extremity, missing_ranges):
        damage(made.room_id)
    for number, subject in enumerate(SUBJECTS):
        assert [found for found in SUBJECTS if check_room(made.room_id).of(found)] == [*SUBJECTS[number:]]
        resync_room(made.room_id, subject)
    assert check_room(made.room_id).clean


def test_lost_gap_is_found_again():
    made, gap, _ = with_gap()
    backfill(gap[3])
    before = gaps(made.room_id)
    BackwardExtremity.objects.filter(room_id=made.room_id).delete()
    assert resync_room(made.room_id, "extremities").after.clean and gaps(made.room_id) == before != []


def test_what_nobody_can_know_is_left():
    """Above a gap the told state is all there is."""
    made, _, above = with_gap()
    group = Event.objects.get(event_id=above.event_id).state_group
    StateGroupDelta.objects.filter(state_group=group).delete()
    StateGroup.objects.filter(pk=group).delete()
    done = resync_room(made.room_id, "state")
    assert not done.after.clean
    assert any(not found.mendable and found.key == above.event_id for found in done.after.differences)
    assert Event.objects.get(event_id=above.event_id).state_group == group


def test_lost_json_is_told_and_left():
    made = generated(4)
    persist_all(made.events, 100)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM events_eventjson WHERE event_id = %s", [made.events[7].event_id])
    done = resync_room(made.room_id, "state")
    assert [(found.key, found.mendable) for found in done.after.differences] == [(made.events[7].event_id, False)]


def test_unknown_room():
    assert check_room("!no:x") is None and resync_room("!no:x", "state") is None


def test_room_goes_on_after_a_repair_as_if_nothing_had_been():
    made = generated(5)
    half = len(made.events) // 2
    persist_all(made.events[:half], 10)
    wrong_delta(made.room_id)
    clear_caches()
    assert resync_room(made.room_id, "state").after.clean
    persist_all(made.events[half:], 7)
    assert check_room(made.room_id).clean
