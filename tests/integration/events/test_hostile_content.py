"""Events that the rules of their room allow, whose content is of any type, size and depth: nobody is kept from anything."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from events.admin.links import event_url, room_url
from events.integrity.repair import check_room
from events.models import Event, Room
from events.persist.room_cache import clear_caches
from events.reading.event_json import load_events
from events.reading.pages import timeline_of
from events.visibility.explain import explain_visibility
from replsite.api.tokens import make_token
from tests.support.made_rooms import ALICE, BOB, MadeRoom, public_room
from tests.support.persisted_rooms import incoming, persist
from tests.support.syncing import first

pytestmark = pytest.mark.django_db(transaction=True)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES = {
    "null": None,
    "true": True,
    "array": [[], {}, None, {"type": 5, "room_id": [], "event_id": {}}],
    "object": {"": {}, "\0": [], "$x": None, "event_id": 7, "key": []},
    "empty": "",
    "text": "\0\u202e\ufffe%s\\\"'<b>\U0001f600" * 300,
    "negative": -(2**53) + 1,
    "large": 2**53 - 1,
    "deep": nested(280),
    "deepest": nested(894),
}
OLD_VALUES = {"huge": 10**400, "fraction": 1.5, "tiny": -5e-324, "great": 1e308}
STATE = {
    "m.room.name": "name",
    "m.room.topic": "topic",
    "m.room.canonical_alias": "alias",
    "m.room.aliases": "aliases",
    "m.room.avatar": "url",
    "m.room.retention": "max_lifetime",
    "m.room.guest_access": "guest_access",
    "m.room.encryption": "algorithm",
    "m.room.tombstone": "replacement_room",
    "m.room.pinned_events": "pinned",
    "m.room.server_acl": "allow",
    "m.room.third_party_invite": "display_name",
    "m.room.history_visibility": "history_visibility",
    "m.space.child": "via",
    "org.own": "x",
}
SAID = {
    "m.room.message": ("body", "msgtype", "m.relates_to", "m.mentions", "m.new_content"),
    "m.room.encrypted": ("algorithm",),
    "m.reaction": ("m.relates_to",),
    "m.sticker": ("url",),
    "m.call.invite": ("offer",),
    "org.matrix.dummy_event": ("x",),
}
#: Such rooms are looked at in the gate, all others in the second tier.
IN_GATE = {("11", "text"), ("11", "deepest"), ("5", "huge")}
CASES = [
    pytest.param(version, name, marks=() if (version, name) in IN_GATE else pytest.mark.scenario)
    for version, names in (("11", VALUES), ("5", OLD_VALUES), ("1", ["deepest", "huge"]))
    for name in names
]


@pytest.fixture(autouse=True)
def _forget():
    clear_caches()
    yield
    clear_caches()


def hostile_room(version: str, value: Any) -> MadeRoom:
    """A room in which each known place of content has this value."""
    made = public_room(version)
    made.send(
        {
            "type": "m.room.member",
            "state_key": BOB,
            "sender": BOB,
            "content": {"membership": "join", "displayname": value},
        }
    )
    made.state(
        "m.room.join_rules",
        "",
        {"join_rule": "public", "allow": [{"type": "m.room_membership", "room_id": value}, value]},
    )
    for event_type, key in STATE.items():
        made.state(event_type, "", {key: value})
    for event_type, keys in SAID.items():
        for key in keys:
            made.send({"type": event_type, "content": {key: value}, "unsigned": {"x": value, "replaces_state": value}})
    target = made.message()
    made.redaction(target)
    named = {"redacts": made.message().event_id}
    made.send({"type": "m.room.redaction", "content": {"reason": [[value]], **named}, **named})
    made.message()
    return made


@pytest.mark.parametrize(("version", "name"), CASES)
def test_members_sync_read_and_look(version, name, admin_client, admin_user):
    made = hostile_room(version, (VALUES | OLD_VALUES)[name])
    whole = public_room("10", "!whole:a.test")
    whole.member(BOB, "join")
    assert not persist([incoming(event) for event in (*made.events, *whole.events)]).refused
    clear_caches()
    for user in (ALICE, BOB):
        rooms = first(user, events=500).rooms
        assert {room.room_id for room in rooms} == {made.room_id, whole.room_id}
        for event in [event for room in rooms for event in (*room.timeline, *room.state)]:
            assert not event.is_damaged and event.client_event()["event_id"] == event.event_id
        assert timeline_of(user, made.room_id)
        assert len(list(explain_visibility(user, [event.event_id for event in made.events]))) == len(made.events)
    redacted = [made.events[-5].event_id, made.events[-3].event_id]
    assert all("redacted_by" in one.client_event()["unsigned"] for one in load_events(redacted).values())
    assert check_room(made.room_id).clean
    check_pages(made, admin_client, is_deep=name == "deepest")
    check_api(made, admin_user)
    out = io.StringIO()
    call_command("purge", "retention", "--dry-run", "--json", stdout=out, stderr=io.StringIO())
    assert not json.loads(out.getvalue())["left"]


def check_pages(made: MadeRoom, admin_client: Client, *, is_deep: bool) -> None:
    for path in (room_url(made.room_id), "/admin/events/room/"):
        assert admin_client.get(path, {"user": ALICE} if "change" in path else {}).status_code == 200, path
    shown = Event.objects.filter(room_id=made.room_id)
    for event in shown if is_deep else shown[:3]:
        assert admin_client.get(event_url(event.stream_ordering), {"user": ALICE}).status_code == 200, event.type


def check_api(made: MadeRoom, admin_user: Any) -> None:
    caller = Client(headers={"authorization": f"Bearer {make_token(admin_user, 'a script', 1, read_only=True)[1]}"})
    room, user = f"/rooms/{made.room_id}", f"/users/{ALICE}"
    events = [f"/events/{event.event_id}" for event in made.events]
    for path in (
        "/rooms",
        room,
        f"{room}/state",
        f"{room}/members",
        f"{room}/messages",
        f"{user}/sync",
        f"{user}{room}/messages",
        *events,
    ):
        answer = caller.get(f"/api/v1{path}")
        assert answer.status_code == 200, (path, answer.content[:300])
        assert isinstance(answer.json(), dict)


@pytest.mark.parametrize("name", VALUES)
def test_an_invite_from_elsewhere_brings_any_state(name, admin_user):
    made = MadeRoom("11", "!elsewhere:b.test", ruled=True)
    value = VALUES[name]
    entry = {"type": "m.room.name", "state_key": value, "content": {"name": value}, "sender": value}
    invite = made.send(
        {
            "type": "m.room.member", "state_key": BOB, "content": {"membership": "invite", "reason": value},
            "unsigned": {"invite_room_state": [entry, value, {"type": value, "content": value}]},
        },
        outlier=True,
    )  # fmt: skip
    assert not persist([incoming(invite)]).refused
    assert Room.objects.count() == 1
    (room,) = first(BOB).invited
    assert room.stripped_state[-1]["type"] == "m.room.member"
    caller = Client(headers={"authorization": f"Bearer {make_token(admin_user, 'a script', 1, read_only=True)[1]}"})
    answer = caller.get(f"/api/v1/users/{BOB}/sync")
    assert answer.status_code == 200 and made.room_id in answer.json()["rooms"]["invite"]
