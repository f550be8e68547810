"""Purging a room's history: what goes, what stays, and that what stays can be read and written as before."""

import io
import json
import threading
from collections import deque
from contextlib import closing

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from events.errors import EventsError, PurgeRefused, PurgeWentWrong, UnknownEvent, UnknownRoom
from events.integrity.repair import check_room
from events.maintenance import group_gc, purge_batch
from events.maintenance.cut import cut_at_event, cut_at_time
from events.maintenance.group_gc import GroupPurge, plan_groups
from events.maintenance.purge_batch import PurgeRequest
from events.maintenance.purge_lock import purge_lock
from events.models import (
    BackwardExtremity,
    CurrentState,
    Event,
    EventEdge,
    EventJson,
    ForwardExtremity,
    Room,
    TimelineGap,
    VisibleEvent,
)
from events.operations import purge_history
from events.operations.purge_history import purge_events, room_figures
from events.persist.batch import with_state
from events.persist.rebuild_visibility import rebuild_visibility
from events.persist.room_cache import clear_caches
from events.reading import pages
from events.reading.pages import timeline_of
from events.reading.state_at import states_at
from events.reading.timeline import timeline
from events.visibility.explain import explain_visibility
from pipeline.models import Job
from state.models import StateGroup, StateGroupDelta
from state.store import StateDigest, full_states
from streams.catalog.models import CacheInvalidation
from streams.core.tokens import VectorToken
from streams.jobs import throttle
from streams.jobs.run import queue_job
from tests.oracle.answers import parsed
from tests.oracles.purge_plan import PurgedEvent, purge_plan
from tests.support.effort import examples
from tests.support.generated_rooms import forked_rooms
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom, public_room
from tests.support.persisted_rooms import (
    current_state,
    extremities,
    gaps,
    incoming,
    persist,
    persist_all,
    replayed_state,
)
from tests.support.reading_rooms import readable_room
from tests.support.room_data import ROOM_NAMES
from tests.support.stored_rooms import store_room
from tests.support.syncing import ids, only, since
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)
SMALL_ROOMS = [name for name in ROOM_NAMES if not name.startswith("large")]


@pytest.fixture(autouse=True)
def _forget(settings, monkeypatch):
    settings.REPLSITE_SERVER_NAME = "nobody.test"
    monkeypatch.setattr(throttle, "_REST", 0)
    yield
    clear_caches()


def run(what, *arguments, **options):
    """The outcome of the command."""
    out = io.StringIO()
    call_command("purge", what, *arguments, "--json", stdout=out, stderr=io.StringIO(), **options)
    return json.loads(out.getvalue())


def purge(room_id, cut, *more):
    return run("history", room_id, "--before-token", f"t{cut}-0", *more)


def planned(room_id, cut, delete_local=False):
    """What the rule says about the room as it is stored."""
    edges = {}
    for event_id, prev in EventEdge.objects.values_list("event_id", "prev_event_id"):
        edges.setdefault(event_id, []).append(prev)
    events = [
        PurgedEvent(e.event_id, e.topological_ordering, tuple(edges.get(e.event_id, ())), e.state_group,
                    e.state_key is not None, e.sender.endswith(":nobody.test"), e.outlier)
        for e in Event.objects.filter(room_id=room_id)
    ]  # fmt: skip
    built_on = dict(
        StateGroup.objects.filter(room_id=room_id, prev_group__isnull=False).values_list("id", "prev_group")
    )
    return purge_plan(events, cut, extremities(room_id), built_on, delete_local=delete_local)


def kept_above(room_id, cut):
    found = Event.objects.filter(room_id=room_id, outlier=False, topological_ordering__gte=cut)
    return sorted(found.values_list("event_id", flat=True))


def states(event_ids):
    return [
        (found.event_id, found.before, found.after) if hasattr(found, "before") else str(found)
        for found in states_at(event_ids)
    ]


def group_rows():
    return StateGroup.objects.count() + StateGroupDelta.objects.count()


def check_groups(room_id):
    """Every row belongs to a group, every group to its chain, and bounds are true."""
    places = {g.pk: g for g in StateGroup.objects.filter(room_id=room_id)}
    for group in places.values():
        assert group.prev_group is None or group.prev_group in places
        assert group.chain in places
    rows = set(StateGroupDelta.objects.filter(chain__in=places).values_list("chain", "state_group"))
    assert rows <= {(g.chain, g.pk) for g in places.values()}
    found = full_states(places)
    assert {group: len(state) for group, state in found.items()} == {pk: g.keys for pk, g in places.items()}
    used = Event.objects.filter(room_id=room_id, state_group__isnull=False)
    needed = set(used.values_list("state_group", flat=True))
    assert needed <= places.keys()


def middle(room_id, share=0.5):
    depths = sorted(Event.objects.filter(room_id=room_id, outlier=False).values_list("topological_ordering", flat=True))
    deepest = max(
        Event.objects.filter(event_id__in=extremities(room_id)).values_list("topological_ordering", flat=True)
    )
    return min(depths[int(len(depths) * share)], deepest)


# --- what goes and what stays -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL_ROOMS)
@pytest.mark.parametrize("batch", [7, 1000])
def test_tables_are_what_the_rule_says(name, batch, monkeypatch):
    monkeypatch.setattr(purge_history, "_EVENTS_PER_TRANSACTION", batch)
    monkeypatch.setattr(group_gc, "_GROUPS_PER_TRANSACTION", batch)
    room_id = store_room(parsed(name)).room_id
    cut = middle(room_id, 0.6)
    plan, kept = planned(room_id, cut), kept_above(room_id, cut)
    before, was, groups_before = (
        states(kept),
        room_figures(room_id, "default"),
        set(StateGroup.objects.values_list("id", flat=True)),
    )
    users = sorted(
        CurrentState.objects.filter(room_id=room_id, type="m.room.member").values_list("state_key", flat=True)
    )[:4]
    seen = {user: visible(room_id, user, cut) for user in users}
    foreseen = purge(room_id, cut, "--dry-run")
    assert room_figures(room_id, "default") == was
    outcome = purge(room_id, cut)
    assert {**foreseen, "dry_run": False} == outcome
    assert (
        Event.objects.filter(event_id__in=plan.deleted).count()
        == 0
        == EventJson.objects.filter(pk__in=plan.deleted).count()
    )
    assert (outcome["deleted"], outcome["became_outliers"]) == (len(plan.deleted), len(plan.become_outliers))
    outliers = Event.objects.filter(event_id__in=plan.become_outliers)
    assert set(outliers.values_list("outlier", "state_group")) <= {(True, None)}
    assert outliers.count() == len(plan.become_outliers)
    assert gaps(room_id) == sorted(plan.gaps)
    assert extremities(room_id) == sorted(plan.extremities)
    assert kept_above(room_id, cut) == kept
    assert states(kept) == before
    assert {user: visible(room_id, user, cut) for user in users} == seen
    gone = groups_before - set(StateGroup.objects.values_list("id", flat=True))
    assert gone <= plan.groups_deleted
    check_groups(room_id)
    assert outcome["tables"] == {t: [count, room_figures(room_id, "default")[t]] for t, count in was.items()}
    for table in ("events_event", "events_eventjson", "events_eventedge", "state_stategroup", "state_stategroupdelta"):
        assert outcome["tables"][table][1] <= outcome["tables"][table][0]
    again = purge(room_id, cut)
    assert (again["deleted"], again["became_outliers"], again["state_groups_deleted"]) == (0, 0, 0)


def visible(room_id, user, cut):
    """What the user is shown from the cut on."""
    try:
        shown = pages.timeline(room_id, user, limit=1000, after=pages.OLDEST).events
    except Exception as error:  # noqa: BLE001 - whatever it was before has to be the same afterwards
        return type(error).__name__
    return [e.event_id for e in shown if e.topological_ordering >= cut]


@given(forked_rooms(most_events=20), st.floats(0, 1), st.booleans(), st.integers(1, 5))
@hypothesis_settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
def test_generated_rooms_are_what_the_rule_says(made, share, delete_local, batch):
    with transaction.atomic():
        room_id = store_room(made.events).room_id
        if extremities(room_id):
            one_generated(room_id, share, delete_local, batch)
        transaction.set_rollback(True)


def one_generated(room_id, share, delete_local, batch):
    cut, before_size = purge_history._EVENTS_PER_TRANSACTION, group_rows()
    purge_history._EVENTS_PER_TRANSACTION, batch_before = batch, cut
    try:
        cut = middle(room_id, min(share, 0.99))
        plan, kept = planned(room_id, cut, delete_local), kept_above(room_id, cut)
        before = states(kept)
        request = PurgeRequest(room_id, cut, delete_local, "default")
        foreseen, tables = purge_history.foresee_history(request)
        groups_foreseen = GroupPurge(room_id, "default", plan_groups(room_id, "default", cut)).foresee()
        steps = list(purge_events(request))
        assert (steps[-1] if steps else purge_history.HistoryPurged()) == foreseen
        assert room_figures(room_id, "default").items() >= tables.items()
        groups = GroupPurge(room_id, "default", plan_groups(room_id, "default"))
        for _ in groups.carry_out():
            pass
        assert groups.done == groups_foreseen
        assert (gaps(room_id), extremities(room_id)) == (sorted(plan.gaps), sorted(plan.extremities))
        assert (kept_above(room_id, cut), states(kept)) == (kept, before)
        assert group_rows() <= before_size
        check_groups(room_id)
    finally:
        purge_history._EVENTS_PER_TRANSACTION = batch_before


def test_messages_of_this_server_stay_as_outliers_unless_asked_for(settings):
    settings.REPLSITE_SERVER_NAME = "a.test"
    made = talked_room(5)
    cut = made.events[-1].depth
    kept = purge(made.room_id, cut)
    assert kept["deleted"] == 0 and kept["became_outliers"] == len(made.events) - 1
    gone = purge(made.room_id, cut, "--delete-local")
    assert (gone["deleted"], gone["became_outliers"]) == (4, 0)


def talked_room(count, room_id="!made:a.test", after=()):
    made = MadeRoom("10", room_id, ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    for _ in range(count):
        made.message()
    persist([incoming(event) for event in made.events])
    return made


# --- depths that are not above those of prev events ---------------------------------------------------------------------


def under_a_low_one(kind):
    """Bob's leave and a message on it, a fork; an event above it that says to be at depth 1; an event on both forks."""
    made = MadeRoom("10", ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    fork = made.member(BOB, "join")
    left = made.message(prev=[made.member(BOB, "leave", prev=[fork])])
    for _ in range(3):
        left = made.message(prev=[left])
    sender = EVE if kind == "rejected" else ALICE
    low = made.send({"type": "m.room.message", "depth": 1, "sender": sender}, prev=[left])
    other = made.message(prev=[made.message(prev=[fork])])
    made.send({"type": "m.room.message", "depth": 30}, prev=[low, other])
    persist_all(made.events, 1)
    return made, left


def assert_it_is_well(made):
    report = check_room(made.room_id)
    assert report.clean, report.differences
    assert current_state(made.room_id) == replayed_state(made.room_id)
    rebuild_visibility(made.room_id)
    assert check_room(made.room_id).clean


@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("kind", ["accepted", "rejected"])
def test_event_under_a_purged_one_that_said_to_be_below_it_is_a_leaf_again(kind, batch, monkeypatch):
    """Other servers choose the depths of their events."""
    monkeypatch.setattr(purge_history, "_EVENTS_PER_TRANSACTION", batch)
    made, left = under_a_low_one(kind)
    before = extremities(made.room_id)
    assert_it_is_well(made)
    purge(made.room_id, 7)
    assert extremities(made.room_id) == sorted([*before, left.event_id])
    assert_it_is_well(made)
    assert persist([incoming(made.message(prev=[left, made.events[-1]]))]).stored[0].rejected_reason is None
    assert len(extremities(made.room_id)) == 1
    assert_it_is_well(made)


def test_event_that_others_reach_stays_no_leaf():
    made, left = under_a_low_one("accepted")
    persist([incoming(made.message(prev=[left, made.events[-1]]))])
    before = extremities(made.room_id)
    purge(made.room_id, 7)
    assert extremities(made.room_id) == before
    assert_it_is_well(made)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_room_keeps_a_leaf():
    made = talked_room(3)
    before = room_figures(made.room_id, "default")
    for more in ((), ("--dry-run",)):
        with pytest.raises(CommandError, match="would be left without its last event") as raised:
            purge(made.room_id, made.events[-1].depth + 1, *more)
        assert raised.value.returncode == 1
    assert room_figures(made.room_id, "default") == before
    assert "without its last event" in Job.objects.latest("pk").error


def test_one_purge_of_a_room_at_a_time():
    made = talked_room(3)
    with purge_lock(made.room_id, "default"):
        with pytest.raises(CommandError, match="is being purged already"):
            purge(made.room_id, 5)
        with purge_lock("!other:a.test", "default"):
            pass
    assert purge(made.room_id, 5)["became_outliers"] > 0


@pytest.mark.parametrize(
    "arguments", [["!nowhere:a.test", "--before-time", "5"], ["!made:a.test", "--before", "$nothing"]]
)
def test_unknown_rooms_and_events(arguments):
    talked_room(1)
    with pytest.raises(CommandError) as raised:
        run("history", *arguments)
    assert raised.value.returncode == 1


@pytest.mark.parametrize("cut", [["--before-token", "s5"], ["--before-time", "-1"], []])
def test_unusable_arguments(cut):
    with pytest.raises(CommandError) as raised:
        run("history", "!made:a.test", *cut)
    assert raised.value.returncode == 2 or not cut


# --- where to cut -----------------------------------------------------------------------------------------------------


def test_cuts():
    made = talked_room(4)
    room, last = made.room_id, made.events[-1]
    assert cut_at_event(room, last.event_id, "default") == last.depth
    assert cut_at_time(room, last.origin_server_ts, "default") == last.depth - 1
    assert cut_at_time(room, 2**62, "default") == last.depth
    assert cut_at_time(room, 5, "default") == 0
    with pytest.raises(UnknownEvent):
        cut_at_event("!made:a.test", "$x\0", "default")
    with pytest.raises(UnknownRoom):
        cut_at_time("!x:a.test", 5, "default")


def test_an_event_that_claims_to_be_old_takes_nothing_younger_with_it():
    made = talked_room(4)
    liar = made.send({"type": "m.room.message", "origin_server_ts": 1})
    persist([incoming(liar)])
    message = made.events[5]
    assert cut_at_time(made.room_id, message.origin_server_ts, "default") <= message.depth


# --- the room afterwards ----------------------------------------------------------------------------------------------


def test_a_purged_room_goes_on():
    made = talked_room(5)
    purge(made.room_id, made.events[-1].depth)
    join, message = made.member(BOB, "join"), made.message(sender=BOB)
    assert not persist([incoming(join), incoming(message)]).refused
    assert current_state(made.room_id) == replayed_state(made.room_id) == made.state_after(message.event_id)
    assert [entry.event_id for entry in timeline(made.room_id)] == [e.event_id for e in made.events[:-4:-1]]


def test_purged_events_come_in_again_by_backfill():
    made = talked_room(5)
    cut = made.events[-1].depth
    purge(made.room_id, cut)
    back = [incoming(event, backfilled=True) for event in made.events[:-1]]
    outcome = persist(back)
    assert (len(outcome.stored), outcome.refused) == (len(back), [])
    assert gaps(made.room_id) == []
    assert [entry.event_id for entry in timeline(made.room_id)] == [e.event_id for e in reversed(made.events)]
    assert Event.objects.filter(outlier=True).count() == 0


@pytest.mark.parametrize("setting", ["shared", "world_readable"])
def test_who_has_left_sees_no_more_when_the_event_that_told_of_it_is_gone(setting):
    """The leave itself never came: a message came with a state in which it was, and that message is purged."""
    made = public_room()
    made.state("m.room.history_visibility", "", {"history_visibility": setting})
    made.member(BOB, "join")
    made.message()
    persist_all(made.events)
    leave = made.member(BOB, "leave")
    told_of = made.message()
    by_id = {known.event_id: known for known in made.events}
    state = [by_id[event_id].json for event_id in made.state_after(leave.event_id).values()]
    persist(with_state(incoming(told_of), state))
    later = [made.message() for _ in range(3)]
    persist_all(later)

    def seen() -> dict[str, list[str]]:
        rows = VisibleEvent.objects.filter(user_id=BOB, room_id=made.room_id).values_list("event_id", flat=True)
        explained = explain_visibility(BOB, [event.event_id for event in made.events])
        return {
            "view": sorted(rows),
            "timeline": sorted(entry.event_id for entry in timeline_of(BOB, made.room_id)),
            "rule": sorted(answer.event_id for answer in explained if getattr(answer, "seen", False)),
        }

    assert told_of.event_id in seen()["view"] and later[0].event_id not in seen()["view"]
    cut = readable_room(BOB, made.room_id).cut
    purge(made.room_id, later[-1].depth)
    assert seen() == {"view": [], "timeline": [], "rule": []}
    assert readable_room(BOB, made.room_id).cut == cut
    back = [event for event in made.events if event not in (leave, later[-1])]
    outcome = persist([incoming(event, backfilled=True) for event in [*back[:-3], leave, *back[-3:]]])
    assert not outcome.refused
    before = [event.event_id for event in made.events[: made.events.index(leave) + 1]]
    assert seen() == dict.fromkeys(("view", "timeline", "rule"), sorted(before))


def test_a_hole_is_noted_where_a_sync_meets_it():
    made = talked_room(5)
    purge(made.room_id, made.events[-2].depth)
    above = Event.objects.get(event_id=made.events[-2].event_id)
    assert list(TimelineGap.objects.values_list("stream_ordering", flat=True)) == [above.stream_ordering]
    purge(made.room_id, made.events[-1].depth)
    above = Event.objects.get(event_id=made.events[-1].event_id)
    assert list(TimelineGap.objects.values_list("stream_ordering", flat=True)) == [above.stream_ordering]


def test_a_sync_across_the_cut_is_limited():
    made = talked_room(5)
    place = Event.objects.get(event_id=made.events[-4].event_id).stream_ordering
    before = only(since(ALICE, VectorToken(place)).joined)
    purge(made.room_id, made.events[-1].depth)
    after = only(since(ALICE, VectorToken(place)).joined)
    assert (before.limited, ids(before.timeline)) == (False, [e.event_id for e in made.events[-3:]])
    assert (after.limited, ids(after.timeline)) == (True, [made.events[-1].event_id])


def test_a_shallow_leaf_goes_and_the_state_is_that_of_the_others():
    made = MadeRoom("10", ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    base = made.events[-1]
    bob = made.member(BOB, "join", prev=[base])
    line = [made.message(prev=[base])]
    line += [made.message(prev=[line[-1]])]
    line += [made.message(prev=[line[-1]])]
    persist_all([*made.events[:-4], *line, bob])
    assert ("m.room.member", BOB) in current_state(made.room_id)
    assert purge(made.room_id, line[-1].depth)["leaves_removed"] == 1
    assert extremities(made.room_id) == [line[-1].event_id]
    assert current_state(made.room_id) == replayed_state(made.room_id) == made.state_after(line[-1].event_id)
    assert not Room.objects.get().current_state_unresolved
    after = made.member(BOB, "join", prev=[line[-1]])
    persist([incoming(after)])
    leave = made.member(BOB, "leave", prev=[after])
    assert not persist([incoming(leave)]).refused
    assert current_state(made.room_id) == replayed_state(made.room_id)


def test_others_are_told_in_the_same_transaction(monkeypatch):
    made = talked_room(5)
    before = Room.objects.get().content_generation
    monkeypatch.setattr(purge_batch, "_PURGE", f"{purge_batch._PURGE}; SELECT 1 / 0")
    with pytest.raises(CommandError, match="division by zero"):
        purge(made.room_id, 5)
    found = CacheInvalidation.objects.exclude(cache_name="cs_cache_fake").count(), Room.objects.get().content_generation
    assert found == (0, before)
    assert not Event.objects.filter(outlier=True).exists()
    monkeypatch.undo()
    purge(made.room_id, 5)
    assert set(CacheInvalidation.objects.values_list("cache_name", flat=True)) == {"stored_event", "cs_cache_fake"}
    assert Room.objects.get().content_generation > before


# --- stopped, and beside others ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_after", range(12))
def test_stopped_anywhere_and_run_again_gives_the_same_end(stop_after, monkeypatch):
    monkeypatch.setattr(purge_history, "_EVENTS_PER_TRANSACTION", 8)
    monkeypatch.setattr(group_gc, "_GROUPS_PER_TRANSACTION", 3)
    room_id = store_room(parsed("v11_redactions")).room_id
    cut = middle(room_id)
    plan, kept = planned(room_id, cut), kept_above(room_id, cut)
    before = states(kept)
    foreseen = purge(room_id, cut, "--dry-run")
    with purge_lock(room_id, "default"):
        steps = every_step(PurgeRequest(room_id, cut, False, "default"))
        with closing(steps):
            for _ in zip(range(stop_after + 1), steps, strict=False):
                assert extremities(room_id)
    assert states(kept) == before
    check_groups(room_id)
    purge(room_id, cut)
    figures = room_figures(room_id, "default")
    assert figures == {table: after for table, (_, after) in foreseen["tables"].items()}
    assert (gaps(room_id), states(kept)) == (sorted(plan.gaps), before)


def every_step(request):
    yield from purge_events(request)
    yield from GroupPurge(request.room_id, request.using, plan_groups(request.room_id, request.using)).carry_out()


def test_beside_a_live_writer(monkeypatch):
    monkeypatch.setattr(purge_history, "_EVENTS_PER_TRANSACTION", 2)
    made = talked_room(30)
    cut = made.events[-1].depth
    new = [made.member(BOB, "join" if n % 2 == 0 else "leave") for n in range(30)]
    errors = []

    def write():
        try:
            for outcome in persist_all(new):
                errors.extend(outcome.refused)
        except Exception as error:  # noqa: BLE001 - told to the main thread
            errors.append(error)
        finally:
            connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    outcome = purge(made.room_id, cut)
    writer.join(2 * DEADLINE_SECONDS)
    assert errors == []
    assert outcome["deleted"] == 29
    assert current_state(made.room_id) == replayed_state(made.room_id) == made.state_after(new[-1].event_id)
    run("orphans")
    check_groups(made.room_id)
    assert [found[2] for found in states([e.event_id for e in new])] == [made.state_after(e.event_id) for e in new]


def test_a_dry_run_beside_a_live_writer_contradicts_itself_nowhere(monkeypatch):
    """A state event is stored between each two of its queries."""
    made = talked_room(30)
    cut = made.events[-1].depth
    meanwhile = []

    def write():
        persist_all([made.member(BOB, "join" if len(meanwhile) % 2 == 0 else "leave")])
        connections.close_all()

    def beside(module, name):
        real = getattr(module, name)

        def call(*arguments):
            writer = threading.Thread(target=write)
            writer.start()
            writer.join(DEADLINE_SECONDS)
            meanwhile.append(name)
            return real(*arguments)

        monkeypatch.setattr(module, name, call)

    beside(purge_history, "foresee_history")
    beside(purge_history, "plan_groups")
    before = room_figures(made.room_id, "default")
    foreseen = purge(made.room_id, cut, "--dry-run")
    assert len(meanwhile) == 2 and room_figures(made.room_id, "default") != before
    assert {table: count for table, (count, _) in foreseen["tables"].items()} == before
    assert foreseen["deleted"] == 29 and foreseen["tables"]["events_event"] == [
        before["events_event"],
        before["events_event"] - 29,
    ]
    job = Job.objects.get()
    assert job.before == before and job.after == {table: after for table, (_, after) in foreseen["tables"].items()}
    group_tables = ("state_stategroup", "state_stategroupdelta")
    assert [foreseen["tables"][table][1] for table in group_tables] == [
        before[table] - foreseen[gone]
        for table, gone in zip(group_tables, ("state_groups_deleted", "state_rows_deleted"), strict=True)
    ]


def test_a_group_that_comes_into_use_meanwhile_stays():
    made = talked_room(6)
    request = PurgeRequest(made.room_id, made.events[-1].depth, False, "default")
    for _ in purge_events(request):
        pass
    groups = GroupPurge(made.room_id, "default", plan_groups(made.room_id, "default"))
    one = StateGroup.objects.filter(room_id=made.room_id).order_by("id")[1]
    before = full_states([one.pk])
    Event.objects.writable().filter(event_id=made.events[-1].event_id).update(state_group=one.pk)
    for _ in groups.carry_out():
        pass
    assert groups.done.left > 0
    assert full_states([one.pk]) == before
    check_groups(made.room_id)


def test_a_merge_that_would_change_a_state_is_taken_back_and_said(monkeypatch):
    made = talked_room(6)
    for _ in purge_events(PurgeRequest(made.room_id, made.events[-1].depth, False, "default")):
        pass
    groups = GroupPurge(made.room_id, "default", plan_groups(made.room_id, "default"))
    rows = sorted(StateGroupDelta.objects.values_list("chain", "state_group", "type", "state_key", "event_id"))
    wrong = group_gc._MOVE_ROWS.replace("SET state_group", "SET event_id = '$wrong', state_group")
    monkeypatch.setattr(group_gc, "_MOVE_ROWS", wrong)
    with pytest.raises(PurgeWentWrong, match="would read differently"):
        deque(groups.carry_out(), maxlen=0)
    left = StateGroupDelta.objects.values_list("chain", "state_group", "type", "state_key", "event_id")
    assert groups.done.moved == 0 and set(left) <= set(rows)
    monkeypatch.undo()
    run("orphans")
    check_groups(made.room_id)


def test_pieces_grow_with_the_state_above_that_is_read_after_each():
    at_once = [group_gc._groups_at_once(StateDigest(entries, "")) for entries in (3, 50_000, 10**7)]
    assert at_once == [500, 2_500, 5_000]


# --- orphans ----------------------------------------------------------------------------------------------------------


def test_groups_that_nothing_needs_are_counted_and_removed():
    made, other = talked_room(2), talked_room(2, "!other:a.test")
    room = made.room_id
    top = StateGroup.objects.filter(room_id=room).latest("id")
    for extra in range(3):
        group = StateGroup.objects.create(
            room_id=room, prev_group=top.pk, chain=0, hops=1, keys=top.keys + 1, rows_to_read=9
        )
        StateGroup.objects.filter(pk=group.pk).update(chain=group.pk)
        StateGroupDelta.objects.create(
            chain=group.pk, state_group=group.pk, type="x", state_key=str(extra), event_id="$x"
        )
    kept = sorted(e.event_id for e in (*made.events, *other.events))
    before, rows = states(kept), group_rows()
    foreseen = run("orphans", "--dry-run")
    assert (foreseen["rooms"], foreseen["state_groups_deleted"], foreseen["state_rows_deleted"]) == (2, 3, 3)
    assert run("orphans", "--room", other.room_id)["state_groups_deleted"] == 0
    assert run("orphans") == {**foreseen, "dry_run": False}
    assert (states(kept), group_rows()) == (before, rows - 6)
    assert run("orphans")["state_groups_deleted"] == 0
    check_groups(room)


def test_words_for_people_and_the_job():
    made = talked_room(3)
    out = io.StringIO()
    call_command(
        "purge", "history", made.room_id, "--before", made.events[-1].event_id, stdout=out, stderr=io.StringIO()
    )
    assert ": 2 deleted, 4 kept as outliers; no archive" in out.getvalue() and "state_stategroup: " in out.getvalue()
    job = Job.objects.latest("pk")
    assert (job.kind, job.state) == ("purge history", "done") and job.summary["words"] in out.getvalue()
    assert job.before["events_event"] - job.after["events_event"] == 2
    out = io.StringIO()
    call_command("purge", "orphans", stdout=out, stderr=io.StringIO())
    assert "0 state groups" in out.getvalue()


@pytest.mark.parametrize(
    ("room", "cut", "said"),
    [
        ("!mistyped:here", ["--before-time", "1700000000000"], "!mistyped:here"),
        (None, ["--before", "$mistyped"], r"\$mistyped"),
    ],
)
def test_what_is_mistyped_leaves_no_failed_job_that_alerts(room, cut, said):
    made = talked_room(1)
    with pytest.raises(CommandError, match=said) as refused:
        call_command("purge", "history", room or made.room_id, *cut, stdout=io.StringIO(), stderr=io.StringIO())
    assert refused.value.returncode == 1
    with pytest.raises(EventsError, match=said):
        told = {cut[0][2:].replace("-", "_"): int(cut[1]) if cut[1].isdigit() else cut[1]}
        queue_job("purge history", {"room": room or made.room_id, **told}, "ann")
    assert not Job.objects.exists()


def test_refused_is_a_named_error():
    made = talked_room(1)
    with pytest.raises(PurgeRefused):
        list(purge_events(PurgeRequest(made.room_id, 1000, False, "default")))
    assert ForwardExtremity.objects.count() == 1 and not BackwardExtremity.objects.exists()
