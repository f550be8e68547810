"""Several processes that store events: no deadlock, and nothing that one keeps at hand is used after another made it old."""

from contextlib import contextmanager

import orjson
import pytest
from django.db import connection, transaction
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from events.errors import Reason
from events.format.parsing import parse_event
from events.models import (
    CurrentState,
    CurrentStateDelta,
    Event,
    EventAuth,
    EventEdge,
    EventJson,
    EventVisibility,
    ForwardExtremity,
    Room,
)
from events.persist import room_cache
from events.persist.state_cache import StateCache
from events.reading.timeline import state_at
from state.models import StateGroup
from streams.core.bounded import SharedCache
from streams.db.driver import Statement, send_together
from tests.support.made_rooms import ALICE, BOB, public_room
from tests.support.persisted_rooms import (
    current_state,
    extremities,
    incoming,
    persist,
    persist_all,
    ranges,
    replayed_state,
)
from tests.support.queries import sent
from tests.support.room_results import room_history
from tests.support.room_talker import talkers

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def elsewhere():
    """As another process: it keeps things of its own, and ours stay as they are."""
    ours = room_cache._events, room_cache._states
    room_cache._events, room_cache._states = SharedCache(1_000), StateCache(1_000)
    try:
        yield
    finally:
        room_cache._events, room_cache._states = ours


def room_of_two(room_id="!made:a.test"):
    made = public_room(room_id=room_id)
    made.member(BOB, "join")
    return made


def stored(*events):
    """Store them one by one here."""
    return [outcome for event in events for outcome in persist([incoming(event)]).stored]


def delete_room(room_id):
    """What a purge of a whole room leaves: nothing."""
    ids = list(Event.objects.filter(room_id=room_id).values_list("event_id", flat=True))
    for model in (EventJson, EventEdge, EventAuth, ForwardExtremity):
        model.objects.filter(event_id__in=ids).delete()
    for model in (CurrentState, EventVisibility, StateGroup, CurrentStateDelta, Event, Room):
        rows = QuerySet(model).filter(room_id=room_id)
        rows._raw_delete(rows.db)


# --- at once ----------------------------------------------------------------------------------------------------------


def recomputed(room_id):
    """The room from its stored events in the order of their positions."""
    ids = list(Event.objects.filter(room_id=room_id).order_by("stream_ordering").values_list("event_id", flat=True))
    texts = {row.event_id: bytes(row.json) for row in EventJson.objects.filter(event_id__in=ids)}
    events = [parse_event(texts[event_id], orjson.loads(texts[event_id]), "10", event_id) for event_id in ids]
    return events, room_history(events)


def test_processes_in_the_same_and_in_other_rooms(database_url, tmp_path):
    rooms = [room_of_two(f"!{name}:a.test") for name in "abc"]
    for room in rooms:
        persist_all(room.events, 10)
    parts = {name: [] for name in ("one", "two", "here")}
    for room in rooms:
        base = room.events[-1]
        for number, name in enumerate(parts):
            message = room.message(prev=[base], sender=BOB)
            topic = room.topic(f"{name} {number}", prev=[message])
            fan = [room.message(prev=[topic], sender=(ALICE, BOB)[n % 2]) for n in range(6)]
            parts[name].append([message, topic, *fan])
    files = {}
    for name, lines in parts.items():
        mixed = [event for group in zip(*lines, strict=True) for event in group]
        files[name] = tmp_path / name
        files[name].write_bytes(b"\n".join(event.json for event in mixed))
        parts[name] = mixed
    with talkers(database_url, "one", "two") as found:
        for name, talker in zip(("one", "two"), found, strict=True):
            talker.tell("persist", str(files[name]), "4")
        assert sum(len(outcome.stored) for outcome in persist_all(parts["here"], 5)) == 24
        assert [talker.answer()[0] for talker in found] == [24, 24]
    for room in rooms:
        events, computed = recomputed(room.room_id)
        assert len(events) == len(room.events)
        assert extremities(room.room_id) == sorted(computed.forward_extremities)
        expected = {(kind, key): event_id for kind, key, event_id, _ in computed.current_state}
        assert current_state(room.room_id) == replayed_state(room.room_id) == expected
        ids = [event.event_id for event in events]
        by_id = [
            (row.user_id, row.kind, ids[row.first], None if row.last is None else ids[row.last])
            for row in computed.visibility
        ]
        assert ranges(room.room_id) == sorted(by_id, key=str)


def test_processes_that_send_in_one_room_leave_one_line(database_url):
    room = room_of_two()
    persist_all(room.events, 10)
    with talkers(database_url, "one", "two", "three") as found:
        for talker in found:
            for _ in range(5):
                talker.tell("send", room.room_id, BOB)
        positions = [talker.answer()[0] for talker in found for _ in range(5)]
    assert len(set(positions)) == 15
    assert len(extremities(room.room_id)) == 1
    assert EventEdge.objects.count() == len(room.events) - 1 + 15


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_state_that_another_process_changed_counts_at_once():
    room = room_of_two()
    stored(*room.events, first := room.message(sender=BOB))
    levels = {"users": {ALICE: 100}, "events": {"m.room.message": 50}}
    with elsewhere():
        stored(muted := room.state("m.room.power_levels", "", levels, prev=[first]))
    (late,) = stored(room.message(prev=[muted], sender=BOB))
    assert late.rejected_reason is not None
    (spoken,) = stored(room.message(prev=[muted], sender=ALICE))
    assert spoken.rejected_reason is None
    assert state_at(spoken.event_id).after["m.room.power_levels", ""] == muted.event_id


def test_leaves_of_another_process_are_those_that_soft_fail():
    room = room_of_two()
    stored(*room.events)
    base = room.events[-1]
    with elsewhere():
        stored(room.member(BOB, "ban", prev=[base], sender=ALICE))
    (late,) = stored(room.message(prev=[base], sender=BOB))
    assert late.soft_failed


def test_outlier_that_became_normal_elsewhere_carries_events_here():
    room = room_of_two()
    base = room.events[-1]
    topic = room.topic("x", prev=[base])
    above = room.message(prev=[topic])
    stored(*room.events[:-2])
    persist([incoming(topic, outlier=True)])
    assert persist([incoming(above)]).refused[0].error.reason is Reason.MISSING_PREV_EVENTS
    with elsewhere():
        stored(topic)
    stored(above)
    assert state_at(above.event_id).after["m.room.topic", ""] == topic.event_id
    assert extremities(room.room_id) == [above.event_id]


def test_event_that_is_gone_is_not_built_on():
    room = room_of_two()
    stored(*room.events, message := room.message())
    for model in (Event, EventJson, EventEdge, ForwardExtremity):
        rows = QuerySet(model).filter(event_id=message.event_id)
        rows._raw_delete(rows.db)
    outcome = persist([incoming(room.message(prev=[message]))])
    assert [refused.error.reason for refused in outcome.refused] == [Reason.MISSING_PREV_EVENTS]


def test_room_that_was_deleted_begins_anew():
    room = room_of_two()
    stored(*room.events)
    delete_room(room.room_id)
    create = room.events[0]
    with elsewhere():
        persist([incoming(create, outlier=True)])
    outcome = persist([incoming(event) for event in room.events[1:]])
    assert {refused.error.reason for refused in outcome.refused} == {Reason.MISSING_PREV_EVENTS}
    stored(*room.events, last := room.message())
    assert extremities(room.room_id) == [last.event_id]
    assert current_state(room.room_id) == state_at(last.event_id).after


def test_what_was_rolled_back_is_not_kept():
    room = room_of_two()
    stored(*room.events)
    topic = room.topic("x")
    above = room.message()
    with transaction.atomic():
        stored(topic, above)
        transaction.set_rollback(True)
    assert not Event.objects.filter(event_id=topic.event_id).exists()
    assert persist([incoming(above)]).refused[0].error.reason is Reason.MISSING_PREV_EVENTS
    stored(topic, above)
    assert state_at(above.event_id).after["m.room.topic", ""] == topic.event_id


def test_nothing_of_a_failed_batch_is_built_on(monkeypatch):
    room = room_of_two()
    stored(*room.events)
    topic = room.topic("x")
    monkeypatch.setattr("events.persist.write_rows._RoomWriter.finish", lambda self, using: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stored(topic)
    monkeypatch.undo()
    assert persist([incoming(room.message())]).refused[0].error.reason is Reason.MISSING_PREV_EVENTS


# --- what a message takes ---------------------------------------------------------------------------------------------


def messages_to_the_server(work):
    with CaptureQueriesContext(connection) as queries:
        work()
    return [sql for sql in sent(queries) if sql not in ("BEGIN", "COMMIT")]


def test_message_takes_one_question_and_one_answer():
    room = room_of_two()
    stored(*room.events, room.message())
    assert len(messages_to_the_server(lambda: stored(room.message(sender=BOB)))) == 2


def test_batch_of_messages_takes_three():
    room = room_of_two()
    stored(*room.events, room.message())
    batch = [incoming(room.message()) for _ in range(20)]
    assert len(messages_to_the_server(lambda: persist(batch))) == 3  # read, reserve, write


def written_rows():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE relname ~ '^(events|state)_'"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize(("count", "rows"), [(1, 5), (10, 32)])
def test_messages_write_so_many_rows_and_no_more(count, rows):
    room = room_of_two()
    stored(*room.events, room.message())
    before = written_rows()
    persist([incoming(room.message()) for _ in range(count)])
    assert written_rows() - before == rows


def test_nothing_is_prepared_behind_a_pooler(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "DIRECT", {"PORT": connection.settings_dict["PORT"]})
    room = room_of_two()
    said = messages_to_the_server(lambda: stored(*room.events, room.message()))
    assert not any("EXECUTE" in sql or "PREPARE" in sql for sql in said)
    assert len(extremities(room.room_id)) == 1


def test_statements_of_a_message_share_their_values():
    with transaction.atomic():
        first = Statement("SELECT set_config('replsite.test', %(word)s::text, true)", {"word": "it's"})
        again = Statement("SELECT current_setting('replsite.test'), %(word)s::text", {"word": "it's"})
        for _ in range(2):
            assert send_together(connection, [first, again]) == [("it's", "it's")]
