"""Stored JSON that cannot be read: whoever reads it beside other rows gets the others."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command
from django.db import DataError
from django.test import Client

from events.admin.links import event_url, room_url
from events.errors import EventUnreadable, StateUnresolved
from events.integrity.compare import EVERYTHING
from events.integrity.repair import resync_room
from events.management.commands import resolve_rooms
from events.models import Event, EventJson
from events.operations.purge_retention import retention_cuts
from events.persist.room_cache import clear_caches
from events.reading.event_json import load_events
from events.reading.pages import timeline_of, visible_to
from events.reading.timeline import topological_walk
from events.visibility.explain import Explanation, explain_visibility
from replsite.api.tokens import make_token
from tests.support.made_rooms import ALICE, BOB, MadeRoom, public_room
from tests.support.persisted_rooms import incoming, persist
from tests.support.syncing import first

pytestmark = pytest.mark.django_db(transaction=True)

DAMAGED = {
    "no JSON": b"once upon a time",
    "no object": b"[]",
    "cut off": b'{"content":{"max_lifetime":1',
    "without content": b'{"type":"m.room.message"}',
    "content that is no object": b'{"content":5,"type":"x","sender":"@a:b","origin_server_ts":1}',
    "a number of 5,000 digits": b'{"content":{"max_lifetime":' + b"9" * 5_000 + b"}}",
    "endless nesting": b'{"content":' + b"[" * 9_000 + b"]" * 9_000 + b"}",
}
damaged = pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
SOME = DAMAGED["cut off"]


@pytest.fixture(autouse=True)
def _forget():
    clear_caches()
    yield
    clear_caches()


def whole_room(room_id="!whole:a.test"):
    made = MadeRoom("5", room_id, ruled=True)
    made.message()
    return made


def rooms(damage, *types):
    """A room whose events of these types were damaged, and one that is whole."""
    made, other = public_room("5", "!damaged:a.test"), whole_room()
    for event_type in ("m.room.retention", "m.room.topic", "m.room.name"):
        made.state(event_type, "", {"max_lifetime": 2**40, "topic": "t", "name": "n"})
    made.message()
    made.redaction(made.message())
    assert not persist([incoming(event) for event in (*made.events, *other.events)]).refused
    hurt = [event.event_id for event in made.events if not types or event.type in types]
    EventJson.objects.filter(event_id__in=hurt).update(json=damage)
    clear_caches()
    return made, other


@damaged
def test_members_sync_and_read_all_their_rooms(damage):
    made, other = rooms(damage)
    found = {room.room_id: room for room in first(ALICE).rooms}
    assert found.keys() == {made.room_id, other.room_id}
    events = [event for room in found.values() for event in (*room.timeline, *room.state)]
    told = {event.event_id: json.loads(event.client_json()) for event in events}
    assert told.keys() == {event.event_id for event in (*made.events, *other.events)}
    for event in (*made.events, *other.events):
        assert told[event.event_id]["type"] == event.type and told[event.event_id]["sender"] == event.sender
        assert told[event.event_id]["content"] == ({} if event in made.events else json.loads(event.json)["content"])
    assert len(timeline_of(ALICE, made.room_id)) == len(made.events)
    assert told.items() >= {i: one.client_event() for i, one in load_events(list(told)).items()}.items()


@pytest.mark.parametrize(
    "damage", [b'{"content":{"body":"caf\xe9"}}', b'{"content":{"body":"\x00"}}', b"\xff\xfe{\x00}\x00"]
)
def test_bytes_that_no_page_could_hold_are_not_stored(damage):
    """Pages are sent as text: one such event ended every page of the room, and every sync of its members."""
    made, _ = rooms(SOME, "m.room.topic")
    with pytest.raises(DataError):
        EventJson.objects.filter(event_id=made.alice.event_id).update(json=damage)
    assert [room.room_id for room in first(ALICE).rooms]


def test_an_invite_from_elsewhere_is_told_without_what_cannot_be_read():
    made = MadeRoom("5", "!elsewhere:b.test", ruled=True)
    invite = made.member(BOB, "invite", sender=ALICE, outlier=True)
    assert not persist([incoming(invite)]).refused
    EventJson.objects.filter(event_id=invite.event_id).update(json=SOME)
    (room,) = first(BOB).invited
    assert [one["type"] for one in room.stripped_state] == ["m.room.member"]


def test_other_rooms_are_purged():
    made, _ = rooms(SOME, "m.room.retention")
    out = io.StringIO()
    call_command("purge", "retention", "--json", stdout=out, stderr=io.StringIO())
    assert [left["room_id"] for left in json.loads(out.getvalue())["left"]] == [made.room_id]
    assert [cut.room_id for cut in retention_cuts(2**50, "default") if cut.depth] == []


def test_pages_and_the_api_show_what_there_is(admin_client, admin_user):
    made, _ = rooms(SOME)
    for event in Event.objects.filter(room_id=made.room_id):
        assert admin_client.get(event_url(event.stream_ordering), {"user": ALICE}).status_code == 200
    assert admin_client.get(room_url(made.room_id), {"user": ALICE}).status_code == 200
    token = make_token(admin_user, "a script", 1, read_only=True)[1]
    caller = Client(headers={"authorization": f"Bearer {token}"})
    state, messages = f"/rooms/{made.room_id}/state", f"/rooms/{made.room_id}/messages"
    for path in ("/rooms", state, messages, f"/users/{ALICE}/sync", f"/events/{made.alice.event_id}"):
        assert caller.get(f"/api/v1{path}").status_code == 200, path


def test_events_that_cannot_be_read_are_marked_for_other_servers():
    made, _ = rooms(SOME, "m.room.message", "m.room.topic")
    sent = [event.federation_json() for event in topological_walk(made.room_id) if not event.is_damaged]
    assert len(sent) == len(made.events) - 3
    assert all(isinstance(json.loads(text)["content"], dict) for text in sent)


def test_what_rules_do_not_read_is_not_needed():
    made, _ = rooms(SOME, "m.room.message", "m.room.topic", "m.room.retention", "m.room.member", "m.room.redaction")
    answers = list(explain_visibility(ALICE, [event.event_id for event in made.events]))
    assert all(isinstance(answer, Explanation) for answer in answers)
    made.topic("new")
    made.member(BOB, "join")
    assert [stored.rejected_reason for stored in persist([incoming(e) for e in made.events[-2:]]).stored] == [None] * 2


@pytest.mark.parametrize("kind", ["m.room.power_levels", "m.room.create", "m.room.join_rules"])
def test_rules_without_what_they_read_refuse_the_events_of_that_room(kind):
    made, other = rooms(SOME, kind)
    made.member(BOB, "join")
    other.message()
    outcome = persist([incoming(made.events[-1]), incoming(other.events[-1])])
    assert [stored.event_id for stored in outcome.stored] == [other.events[-1].event_id]
    (refused,) = outcome.refused
    assert refused.error.reason == "bad-state" and "room check !damaged:a.test" in refused.error.detail


def test_who_sees_an_event_is_not_told_where_the_setting_cannot_be_read():
    made = public_room("5", "!damaged:a.test")
    hidden = made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    message = made.message()
    assert not persist([incoming(event) for event in made.events]).refused
    EventJson.objects.filter(event_id=hidden.event_id).update(json=SOME)
    clear_caches()
    before, after = explain_visibility(BOB, [made.alice.event_id, message.event_id])
    assert isinstance(before, Explanation) and isinstance(after, StateUnresolved)


def test_backfilled_events_are_stored_where_the_setting_cannot_be_read_and_shown_after_a_repair():
    made, other = public_room("5", "!damaged:a.test"), whole_room()
    hidden = made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    message = made.message()
    assert not persist([incoming(event) for event in (*made.events, *other.events)]).refused
    stored = EventJson.objects.filter(event_id=hidden.event_id)
    stored.update(json=SOME)
    clear_caches()
    late = made.message(prev=[message])
    outcome = persist([incoming(late, backfilled=True), incoming(other.message())])
    assert [len(outcome.stored), outcome.refused] == [2, []]
    assert not visible_to(ALICE, [late.event_id])
    stored.update(json=hidden.json)
    clear_caches()
    assert resync_room(made.room_id, EVERYTHING).after.differences == []
    assert visible_to(ALICE, [late.event_id])


@pytest.mark.parametrize("kind", ["m.room.history_visibility", "m.room.power_levels"])
def test_a_repair_opens_no_closed_history(kind):
    made = public_room("5", "!damaged:a.test")
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.message()
    made.member(BOB, "join")
    assert not persist([incoming(event) for event in made.events]).refused
    seen = [event.event_id for event in timeline_of(BOB, made.room_id)]
    EventJson.objects.filter(event_id__in=[e.event_id for e in made.events if e.type == kind]).update(json=SOME)
    report = resync_room(made.room_id, EVERYTHING).after
    assert [one.table for one in report.differences] == ["events_eventjson"]
    assert "are not compared" in report.doubts[0]
    assert [event.event_id for event in timeline_of(BOB, made.room_id)] == seen


def test_a_room_that_cannot_be_purged_keeps_no_other_from_it():
    """The leaf of an old branch goes, so the states of the other leaves are resolved again: that takes the power levels."""
    for name in ("!damaged:a.test", "!whole:a.test"):
        made = public_room("5", name)
        policy = made.state("m.room.retention", "", {"max_lifetime": 1})
        made.message(prev=[policy])
        below = made.message(prev=[made.message(prev=[policy])])
        made.topic("one", prev=[below])
        made.topic("other", prev=[below])
        assert not persist([incoming(event) for event in made.events]).refused
        if name == "!damaged:a.test":
            levels = [event.event_id for event in made.events if event.type == "m.room.power_levels"]
            EventJson.objects.filter(event_id__in=levels).update(json=SOME)
    clear_caches()
    out = io.StringIO()
    call_command("purge", "retention", "--json", stdout=out, stderr=io.StringIO())
    found = json.loads(out.getvalue())
    assert found["rooms"] == 1 and [left["room_id"] for left in found["left"]] == ["!damaged:a.test"]


def test_a_room_that_cannot_be_resolved_keeps_no_other_from_it(monkeypatch):
    def resolve_room(room_id, using):
        if room_id == "!damaged:a.test":
            raise EventUnreadable("The stored JSON of $x is damaged.")
        return 3

    monkeypatch.setattr(resolve_rooms, "resolve_room", resolve_room)
    out = io.StringIO()
    call_command("resolve_rooms", "!damaged:a.test", "!whole:a.test", stdout=out)
    assert out.getvalue().splitlines() == [
        "!damaged:a.test: 0 resolved, 0 left. The stored JSON of $x is damaged.",
        "!whole:a.test: 3 resolved, 0 left",
    ]
