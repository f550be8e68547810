"""Censoring: what a redaction takes away is taken from the disk, too, and from what processes keep."""

import io
import json
import threading
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.db.models import F
from msgspec.structs import replace

from events.declarations import CACHE_NAME
from events.models import Event, EventJson, Room
from events.operations import censor as censoring
from events.operations.censor import censor, due
from events.persist.room_cache import StoredEvents
from events.reading.event_json import load_events
from streams.catalog.models import CacheInvalidation
from tests.oracle.answers import parsed
from tests.support.cached import cached
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.stored_rooms import store_room
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

NOW = timedelta(0)
LONG = timedelta(days=7)


@cached(CACHE_NAME)
def body_of(event_id):
    return json.loads(bytes(EventJson.objects.get(pk=event_id).json))["content"].get("body")


def room_with(count, room_id="!made:a.test"):
    """A room with redacted messages, and one that is not; returns it and the redacted ones."""
    made = MadeRoom("10", room_id, ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    relation = {"body": "x", "m.relates_to": {"event_id": made.create.event_id}}
    messages = [made.send({"type": "m.room.message", "content": relation}) for _ in range(count)]
    made.message()
    for message in messages:
        made.redaction(message)
    persist([incoming(event) for event in made.events])
    return made, messages


def run(**options):
    """The outcome of the command."""
    out = io.StringIO()
    call_command("censor", json=True, stdout=out, stderr=io.StringIO(), **options)
    return json.loads(out.getvalue())


def aged(**how):
    """Everything came in so much earlier."""
    Event.objects.writable().update(received_at=F("received_at") - timedelta(**how))


def stored_content(event):
    return json.loads(bytes(EventJson.objects.get(pk=event.event_id).json))["content"]


def test_stored_json_of_redacted_events_is_their_pruned_form():
    made, messages = room_with(3)
    before = {row.event_id: bytes(row.json) for row in EventJson.objects.all()}
    outcome = run(older_than=NOW)
    assert (outcome["due"], outcome["censored"], outcome["left"], outcome["rooms"]) == (3, 3, 0, 1)
    redacted = {message.event_id for message in messages}
    for row in EventJson.objects.all():
        assert (bytes(row.json) == before[row.event_id]) == (row.event_id not in redacted)
    for message in messages:
        assert stored_content(message) == {}
    marks = dict(Event.objects.values_list("event_id", "censored_at"))
    assert {event_id for event_id, at in marks.items() if at is not None} == redacted
    assert not Event.objects.filter(event_id__in=redacted, relates_to__isnull=False).exists()
    assert made.events[-1].redacts == Event.objects.get(event_id=made.events[-1].event_id).redacts


def test_only_what_was_redacted_long_enough_ago(settings):
    room_with(2)
    assert run()["due"] == 0  # the default: a week
    aged(days=8)
    assert run(dry_run=True)["due"] == 2
    late, _ = room_with(1, "!late:a.test")
    settings.REPLSITE_CENSOR_AFTER_DAYS = None
    assert run() | {"seconds": 0} == {
        "due": 0, "censored": 0, "failed": 0, "left": 0, "rooms": 0, "seconds": 0, "dry_run": False, "never": True,
    }  # fmt: skip
    settings.REPLSITE_CENSOR_AFTER_DAYS = 7.0
    assert run()["censored"] == 2
    settings.REPLSITE_CENSOR_AFTER_DAYS = 0.0
    assert run()["censored"] == 1
    assert Event.objects.filter(room_id=late.room_id, censored_at__isnull=False).count() == 1


@pytest.mark.parametrize("days", [1e9, float("inf")])
def test_an_age_beyond_all_time_is_taken(settings, days):
    room_with(1)
    settings.REPLSITE_CENSOR_AFTER_DAYS = days
    assert run()["due"] == run(older_than=timedelta.max)["due"] == 0


def test_age_counts_from_the_later_of_redaction_and_target():
    made = MadeRoom(ruled=True)
    message = made.message()
    redaction = made.redaction(message, prev=[made.events[-2]])
    persist_all([event for event in made.events if event is not message])
    aged(days=30)
    persist([incoming(message)])
    assert Event.objects.get(event_id=message.event_id).redacted_by == redaction.event_id
    assert (due(LONG, "default"), due(NOW, "default")) == (0, 1)


def test_limit_and_going_on():
    room_with(3)
    room_with(2, "!other:a.test")
    assert run(older_than=NOW, dry_run=True)["censored"] == 0
    first, rest = run(older_than=NOW, limit=4), run(older_than=NOW)
    assert [(o["due"], o["censored"], o["left"]) for o in (first, rest)] == [(5, 4, 1), (1, 1, 0)]
    assert run(older_than=NOW)["due"] == 0


def test_a_run_that_is_stopped_keeps_what_is_done(monkeypatch):
    monkeypatch.setattr(censoring, "_EVENTS_PER_TRANSACTION", 2)
    _, messages = room_with(5)
    runs = censor(NOW, "default")
    assert [next(runs).events, next(runs).events] == [2, 4]
    runs.close()
    assert [stored_content(message) for message in messages].count({}) == 4
    assert [done.events for done in censor(NOW, "default")] == [1]


def test_command_tells_people_how_much_is_due(settings):
    room_with(1)
    for options, words in (
        ({"dry_run": True, "older_than": NOW}, "1 events would be censored"),
        ({"older_than": NOW}, "due: 1 -> 0"),
    ):
        out = io.StringIO()
        call_command("censor", stdout=out, **options)
        assert words in out.getvalue()
    settings.REPLSITE_CENSOR_AFTER_DAYS = None
    out = io.StringIO()
    call_command("censor", stdout=out)
    assert "is never" in out.getvalue()


# --- what others see --------------------------------------------------------------------------------------------------


def test_readers_are_given_the_same_before_and_after():
    events = parsed("v11_redactions")
    store_room(events)
    redacted = list(Event.objects.filter(redacted_by__isnull=False).values_list("event_id", flat=True))
    ids = [event.event_id for event in events]
    before = load_events(ids)
    given = {event_id: (event.client_event(), event.federation_json()) for event_id, event in before.items()}
    assert len(redacted) == run(older_than=NOW)["censored"] == 18
    after = load_events(ids)
    assert {event_id: (event.client_event(), event.federation_json()) for event_id, event in after.items()} == given
    assert all(len(after[event_id].json) <= len(before[event_id].json) for event_id in redacted)


def test_followers_are_told_in_the_same_transaction(monkeypatch):
    _, messages = room_with(2)
    before = Room.objects.get().content_generation
    monkeypatch.setattr("events.rows._MARK_CENSORED", "SELECT 1 / 0, %s")
    with pytest.raises(Exception, match="division by zero"):
        list(censor(NOW, "default"))
    assert not CacheInvalidation.objects.filter(cache_name=CACHE_NAME).exists()
    assert Room.objects.get().content_generation == before
    assert stored_content(messages[0]) != {}
    monkeypatch.undo()
    list(censor(NOW, "default"))
    told = CacheInvalidation.objects.exclude(cache_name="cs_cache_fake").values_list("cache_name", "keys")
    assert sorted(told) == sorted((CACHE_NAME, [message.event_id]) for message in messages)
    assert Room.objects.get().content_generation == before + 1


def test_a_cached_function_of_content_forgets_it():
    _, messages = room_with(1)
    assert body_of(messages[0].event_id) == "x"
    list(censor(NOW, "default"))
    wait_until(lambda: body_of(messages[0].event_id) is None)


def test_rules_use_the_pruned_form_from_then_on():
    made = MadeRoom("10", ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    third = made.state("m.room.third_party_invite", "token", {"public_key": "k"})
    made.redaction(third)
    persist([incoming(event) for event in made.events])
    assert kept(third).content == {"public_key": "k"}
    list(censor(NOW, "default"))
    assert kept(third).content == {}


def kept(event):
    """As persist finds an event of the room."""
    room = Room.objects.get()
    return StoredEvents("default", room.room_id, room.content_generation)[event.event_id]


# --- what comes again, what comes at once -----------------------------------------------------------------------------


def test_the_full_event_does_not_come_back():
    _, messages = room_with(1)
    list(censor(NOW, "default"))
    assert persist([incoming(messages[0])]).duplicates == [messages[0].event_id]
    assert stored_content(messages[0]) == {}


def test_outlier_that_was_censored_stays_so_when_it_gets_its_place():
    made = MadeRoom(ruled=True)
    message = made.message()
    redaction = made.redaction(message, prev=[made.events[-2]])
    persist_all([event for event in made.events if event not in (message, redaction)])
    persist_all([replace(message, outlier=True), redaction])
    list(censor(NOW, "default"))
    persist([incoming(message)])
    found = Event.objects.get(event_id=message.event_id)
    assert (found.outlier, found.redacted_by, stored_content(message)) == (False, redaction.event_id, {})
    assert run(older_than=NOW)["censored"] == 1  # marked anew


def test_event_whose_pruned_form_is_another_event_is_left_and_named():
    _, messages = room_with(2)
    EventJson.objects.filter(pk=messages[0].event_id).update(json=messages[1].json)
    with pytest.raises(CommandError, match=r"1 events were left as they are") as raised:
        run(older_than=NOW)
    assert raised.value.returncode == 1
    assert messages[0].event_id in str(raised.value)
    assert Event.objects.filter(censored_at__isnull=False).count() == 1


def test_beside_writers_of_the_same_room(monkeypatch):
    monkeypatch.setattr(censoring, "_EVENTS_PER_TRANSACTION", 2)
    made, messages = room_with(10)
    more = [made.message() for _ in range(10)]
    late = [made.redaction(message) for message in more]
    errors = []

    def write():
        try:
            persist_all([*more, *late], 1)
        except Exception as error:  # noqa: BLE001 - told to the main thread
            errors.append(error)
        finally:
            connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        list(censor(NOW, "default"))
    writer.join(2 * DEADLINE_SECONDS)
    list(censor(NOW, "default"))
    assert errors == []
    assert {json.dumps(stored_content(event)) for event in (*messages, *more)} == {"{}"}


def test_waits_for_a_transaction_that_has_the_room():
    _, messages = room_with(1)
    done = threading.Event()

    def work():
        try:
            list(censor(NOW, "default"))
        finally:
            done.set()
            connections.close_all()

    with transaction.atomic():
        Room.objects.select_for_update().get()
        thread = threading.Thread(target=work)
        thread.start()
        assert not done.wait(0.5)
        assert stored_content(messages[0]) != {}
    thread.join(DEADLINE_SECONDS)
    assert stored_content(messages[0]) == {}
