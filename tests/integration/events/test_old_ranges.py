"""Ranges of backfilled events are those of a rebuild, whatever batches the events come in."""

import random

import pytest

from events.integrity.repair import check_room
from events.models import EventVisibility
from events.persist.rebuild_visibility import recomputed_ranges
from events.visibility.same_ranges import show_the_same
from tests.integration.events.test_extremities import with_its_state
from tests.integration.events.test_gap_filling import assert_ranges_tell_what_the_rule_tells, backfill
from tests.integration.events.test_live_is_bulk import states_of
from tests.integration.events.test_live_ranges import overlaps
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.persisted_rooms import persist, persist_all
from tests.support.ranges import accepted_places, stored_ranges

pytestmark = pytest.mark.django_db


def room_with(setting):
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": setting})
    return made


def history(setting, acts):
    """(made, old events): the beginning is here, and so is the newest event with its state; the others are to come."""
    made = room_with(setting)
    persist_all(made.events, 100)
    here = len(made.events)
    acts(made)
    old = made.events[here:]
    above = made.message()
    assert persist(with_its_state(made, above)).refused == []
    return made, old


def come_and_go(made):
    made.member(BOB, "join")
    made.message()
    made.member(BOB, "leave")
    made.message()


def assert_as_made_anew(made):
    assert stored_ranges(made.room_id) == recomputed_ranges(made.room_id)
    assert list(overlaps(stored_ranges(made.room_id))) == []
    report = check_room(made.room_id)
    assert report.clean, report.differences
    for user in (ALICE, BOB, EVE, "@stranger:z.test"):
        assert_ranges_tell_what_the_rule_tells(made, user)


@pytest.mark.parametrize("setting", ["shared", "joined", "invited", "world_readable"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_leave_in_another_batch_than_the_join(setting, size):
    made, old = history(setting, come_and_go)
    for start in range(0, len(old), size):
        assert backfill(*old[start : start + size]).refused == []
    assert_as_made_anew(made)


def test_backfill_event_by_event_leaves_few_ranges():
    def talk(made):
        made.member(BOB, "join")
        for number in range(90):
            made.message(sender=BOB if number % 3 else ALICE)
        made.member(EVE, "join")
        made.member(BOB, "leave")

    made, old = history("shared", talk)
    for event in old:
        backfill(event)
    assert len(old) == 93
    rows = EventVisibility.objects.filter(room_id=made.room_id, first__lt=0)
    assert rows.count() <= 2 * len((ALICE, BOB, EVE)) + 2, list(rows.values_list("user_id", "kind", "first", "last"))
    assert_as_made_anew(made)


@pytest.mark.parametrize("seed", range(8))
def test_old_events_in_any_order(seed):
    """Runs that meet from both sides are joined; those with an event without state between them are not."""
    choose = random.Random(seed)

    def acts(made):
        for _ in range(16):
            kind = choose.choice(["say", "join", "leave", "setting", "invite", "ban"])
            user = choose.choice([BOB, EVE])
            if kind == "say":
                made.message()
            elif kind == "setting":
                value = choose.choice(["joined", "shared", "invited", "world_readable"])
                made.state("m.room.history_visibility", "", {"history_visibility": value})
            else:
                made.member(user, kind, sender=ALICE if kind in ("invite", "ban") else None)
            if states_of(made).events[made.events[-1].event_id].rejected_reason is not None:
                made.events.pop()  # another server would not tell of it

    made, old = history("joined", acts)
    choose.shuffle(old)
    while old:
        size = choose.randrange(1, 4)
        backfill(*old[:size])
        old = old[size:]
        assert_as_made_anew(made)


@pytest.mark.parametrize("setting", ["shared", "joined"])
def test_ranges_laid_out_as_before_are_not_called_wrong(setting):
    """As they were stored by earlier versions: the own leave was the last event of the range."""
    made, old = history(setting, come_and_go)
    backfill(*old)
    joined = EventVisibility.objects.get(room_id=made.room_id, user_id=BOB, kind="joined", first__lt=0)
    joined.last += 1
    joined.save()
    EventVisibility.objects.filter(room_id=made.room_id, user_id=BOB, kind="shown").delete()
    stored = stored_ranges(made.room_id)
    assert stored != recomputed_ranges(made.room_id)
    assert show_the_same(stored, recomputed_ranges(made.room_id), accepted_places(made.room_id))
    assert check_room(made.room_id).clean
    for user in (ALICE, BOB):
        assert_ranges_tell_what_the_rule_tells(made, user)
