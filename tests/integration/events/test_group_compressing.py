"""Rewriting state groups: the same states in fewer rows, beside writers and readers, stopped and gone on with."""

import itertools
import threading
from dataclasses import replace

import pytest
from django.db import connections

from events.errors import CompressionRefused, CompressionWentWrong
from events.integrity.repair import check_room
from events.maintenance import group_compaction
from events.maintenance.group_compaction import RoomCompaction, group_rows
from events.models import Event
from events.persist.room_cache import clear_caches
from events.reading import state_at as states_at_module
from events.reading.state_at import states_at
from events.visibility import explain
from state.models import StateGroup, StateGroupDelta
from tests.integration.events.test_purging import check_groups, states
from tests.oracle.answers import parsed
from tests.support.foreign_groups import store_as
from tests.support.made_rooms import BOB, public_room
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.room_data import ROOM_NAMES
from tests.support.room_results import computed
from tests.support.stored_rooms import store_room
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)
SMALL_ROOMS = [name for name in ROOM_NAMES if not name.startswith("large")]
FORKED = "v10_power_fork"


@pytest.fixture(autouse=True)
def _forget():
    yield
    clear_caches()


@pytest.fixture
def small_steps(monkeypatch):
    """Few rows, groups and events in each transaction."""
    for limit in ("_ROWS_PER_TRANSACTION", "_EVENTS_PER_TRANSACTION", "_PAIRS_PER_TRANSACTION"):
        monkeypatch.setattr(group_compaction, limit, 25)


def foreign(name, layout="copied"):
    """A shipped room whose groups were stored wastefully: its ID, and the rows that they take."""
    room_id = store_room(parsed(name)).room_id
    return room_id, store_as(room_id, layout)


def all_states(room_id):
    return states(list(Event.objects.filter(room_id=room_id).order_by("pk").values_list("event_id", flat=True)))


def compress(room_id):
    done = RoomCompaction(room_id, "default")
    done.plan()
    for _ in done.carry_out():
        pass
    return done


def differences(room_id):
    return [found for found in check_room(room_id).differences if found.subject == "state"]


@pytest.mark.parametrize("name", SMALL_ROOMS)
def test_every_state_is_what_it_was_and_takes_about_as_few_rows_as_our_own(name):
    room_id, stored = foreign(name)
    before = all_states(room_id)
    done = compress(room_id)
    assert all_states(room_id) == before
    assert done.planned.before.total == stored
    assert group_rows(room_id, "default") == done.planned.foreseen
    result = computed(parsed(name))
    assert done.planned.foreseen.total <= 1.02 * (len(result.groups) + len(result.group_deltas))
    check_groups(room_id)
    assert differences(room_id) == []


def test_a_plan_changes_nothing():
    room_id, stored = foreign(FORKED)
    planned = RoomCompaction(room_id, "default")
    assert planned.plan().saving > 90
    assert group_rows(room_id, "default").total == stored


def test_what_was_compressed_would_not_shrink_again():
    room_id, _ = foreign(FORKED)
    compress(room_id)
    again = RoomCompaction(room_id, "default")
    assert again.plan().saving < 1


def test_events_are_moved_in_small_transactions(small_steps):
    room_id, _ = foreign(FORKED)
    done = RoomCompaction(room_id, "default")
    done.plan()
    counts = list(done.carry_out())
    assert max(new - old for old, new in itertools.pairwise(counts)) <= 25
    assert counts[-1] == done.planned.events


@pytest.mark.parametrize("stop", [1, 3, 7, 15, 28])
def test_stopped_after_any_transaction_it_can_be_run_again(stop, small_steps):
    room_id, _ = foreign(FORKED)
    before = all_states(room_id)
    stopped = RoomCompaction(room_id, "default")
    stopped.plan()
    steps = stopped.carry_out()
    for _ in range(stop):
        next(steps)
    steps.close()
    assert all_states(room_id) == before
    assert compress(room_id).planned.foreseen == group_rows(room_id, "default")
    assert all_states(room_id) == before
    check_groups(room_id)


def test_what_was_written_in_vain_is_cleaned_up(small_steps):
    room_id, stored = foreign(FORKED)
    stopped = RoomCompaction(room_id, "default")
    stopped.plan()
    next(stopped.carry_out())
    assert group_rows(room_id, "default").total > stored
    for _ in stopped.clean_up():
        pass
    assert group_rows(room_id, "default").total <= stored


def test_what_is_written_meanwhile_is_taken_along(small_steps):
    made = public_room()
    for number in range(60):
        made.topic(f"{number}")
    fork = made.events[-8]
    persist_all(made.events, 20)
    store_as(made.room_id, "copied")
    done = RoomCompaction(made.room_id, "default")
    done.plan()
    written = 0
    for _ in done.carry_out():
        if written == 12:
            continue
        written += 1
        prev = [fork] if written == 2 else [made.events[-1], fork] if written == 5 else None
        made.topic(f"meanwhile {written}", prev=prev)
        assert len(persist([incoming(made.events[-1])]).stored) == 1
    assert written == 12
    assert differences(made.room_id) == []
    check_groups(made.room_id)
    assert group_rows(made.room_id, "default").total < done.planned.before.total / 3
    assert StateGroup.objects.filter(pk__lte=done._plan.highest).count() == 0, "no old group is left"


def test_others_can_go_on_writing_and_reading_afterwards():
    made = public_room()
    for number in range(20):
        made.topic(f"{number}")
    persist_all(made.events, 5)
    store_as(made.room_id, "one by one")
    compress(made.room_id)
    made.member(BOB, "join")
    made.message(sender=BOB)
    persist_all(made.events[-2:])
    assert differences(made.room_id) == []
    assert [found.after for found in states_at([made.events[-1].event_id])] == [
        made.state_after(made.events[-1].event_id)
    ]


def test_readers_meanwhile_get_every_state(small_steps):
    room_id, _ = foreign(FORKED)
    events = list(Event.objects.filter(room_id=room_id).values_list("event_id", flat=True))
    expected, wrong, ended = all_states(room_id), [], threading.Event()
    expected = {state[0]: state for state in expected if isinstance(state, tuple)}

    def read():
        try:
            while not ended.is_set():
                for found in states_at(events):
                    state = found.event_id, found.before, found.after
                    if state != expected[found.event_id]:
                        wrong.append(state)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            wrong.append(error)
        finally:
            connections.close_all()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    compress(room_id)
    ended.set()
    for reader in readers:
        reader.join(DEADLINE_SECONDS)
    assert wrong == []


def in_between(monkeypatch, module, name, room_id):
    """The room is compressed by another process right before the first call of a function."""
    real, done = getattr(module, name), []

    def call(*arguments, **named):
        if not done:
            done.append(True)
            other = threading.Thread(target=lambda: (compress(room_id), connections.close_all()))
            other.start()
            other.join()
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, call)


def test_a_state_whose_group_is_rewritten_while_it_is_read_is_read_again(monkeypatch):
    room_id, _ = foreign("v9_restricted")
    expected = all_states(room_id)
    in_between(monkeypatch, states_at_module, "full_states", room_id)
    assert all_states(room_id) == expected


def test_what_a_user_may_see_does_not_change_while_groups_are_rewritten(monkeypatch):
    room_id, _ = foreign("v10_visibility_walk")
    events = list(Event.objects.filter(room_id=room_id).values_list("event_id", flat=True))

    def seen():
        """Without the numbers of groups, which are what is rewritten."""
        return {
            user: [replace(answer, state_group=None) for answer in explain.explain_visibility(user, events)]
            for user in {event.sender for event in parsed("v10_visibility_walk")}
        }

    expected = seen()
    in_between(monkeypatch, explain, "StoredStates", room_id)
    assert seen() == expected
    assert StateGroup.objects.filter(room_id=room_id).count() < 300


def test_a_state_that_would_differ_stops_everything():
    room_id, _ = foreign(FORKED)
    done = RoomCompaction(room_id, "default")
    done.plan()
    row = StateGroupDelta.objects.filter(chain__in=StateGroup.objects.filter(room_id=room_id).values("chain")).first()
    StateGroupDelta.objects.filter(
        chain=row.chain, state_group=row.state_group, type=row.type, state_key=row.state_key
    ).update(event_id="$other")
    groups = set(Event.objects.filter(room_id=room_id).values_list("event_id", "state_group"))
    with pytest.raises(CompressionWentWrong, match="read differently"):
        list(done.carry_out())
    assert set(Event.objects.filter(room_id=room_id).values_list("event_id", "state_group")) == groups


def test_a_state_before_that_would_differ_stops_everything():
    room_id, _ = foreign(FORKED, "one by one")
    done = RoomCompaction(room_id, "default")
    done.plan()
    first, *_, last = StateGroup.objects.filter(room_id=room_id).order_by("id")
    StateGroup.objects.filter(pk=last.pk).update(prev_group=first.pk)
    with pytest.raises(CompressionWentWrong):
        list(done.carry_out())


def test_a_group_on_one_that_is_missing_is_refused():
    room_id, _ = foreign(FORKED, "one by one")
    second = StateGroup.objects.filter(room_id=room_id).order_by("id")[1]
    StateGroup.objects.filter(pk=second.pk).delete()
    with pytest.raises(CompressionRefused, match="room check"):
        RoomCompaction(room_id, "default").plan()


def test_new_groups_that_somebody_deletes_are_missed_in_time():
    room_id, _ = foreign(FORKED)
    before = all_states(room_id)
    done = RoomCompaction(room_id, "default")
    done.plan()
    steps = done.carry_out()
    next(steps)
    for _ in done.clean_up():
        pass
    with pytest.raises(CompressionWentWrong):
        list(steps)
    assert all_states(room_id) == before


def test_a_room_without_groups_has_nothing_to_save():
    done = RoomCompaction("!nobody:a.test", "default")
    done.plan()
    assert (done.planned.saving, done.planned.before.total, done.planned.events) == (0.0, 0, 0)
