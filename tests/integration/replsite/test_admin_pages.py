"""The admin's pages of an event and of a room: what they tell, that they stay bounded, and that content stays text."""

import json
import re

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse
from msgspec.structs import replace

from events.admin import event_page
from events.admin.links import event_url, room_url
from events.format.parsing import parse_event
from events.models import Event, Room
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.stored_rooms import damage, store_room

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>"


@pytest.fixture
def made():
    return MadeRoom()


def page_of(client, event, **asked):
    answer = client.get(event_url(Event.read.get(event_id=event.event_id).stream_ordering), asked)
    assert answer.status_code == 200
    return answer.content.decode()


def room_page_of(client, room_id, **asked):
    answer = client.get(room_url(room_id), asked)
    assert answer.status_code == 200
    return answer.content.decode()


def text(page):
    """What is read on a page, without markup and line breaks."""
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))


def test_event_page_shows_json_and_its_redacted_form(admin_client, made):
    message = made.message()
    store_room(made.events)
    page = page_of(admin_client, message)
    assert page.count("&quot;body&quot;: &quot;x&quot;") == 1  # in the JSON, and not in the redacted form
    assert page.count("&quot;origin_server_ts&quot;") == 2


def lied(event):
    """The event as it is kept after somebody changed its content on the way."""
    whole = json.loads(event.json) | {"content": {"body": "I owe you"}}
    kept = parse_event(json.dumps(whole).encode(), whole, event.room_version)
    return replace(event, json=kept.json)


def test_an_event_that_fits_no_hash_says_so(admin_client, made):
    """As ``persist`` stores one; what a redaction took away is told by the redaction."""
    message, other, redacted = made.message(), made.message(), made.message()
    made.redaction(redacted)
    store_room([lied(event) if event in (message, redacted) else event for event in made.events])
    pages = [text(page_of(admin_client, event)) for event in (message, other, redacted)]
    assert ["does not fit its hash" in page for page in pages] == [True, False, False]
    assert "I owe you" not in "".join(pages)


def test_event_page_links_both_ways_and_to_auth_events(admin_client, made):
    below = made.message()
    event = made.send({"type": "m.x", "auth_events": [made.create.event_id, "$nowhere"]}, prev=[below, "$gone"])
    above = made.message()
    store_room(made.events)
    page = page_of(admin_client, event)
    stored = {row.event_id: row.stream_ordering for row in Event.read.all()}
    for other in (below, above, made.create):
        assert f'href="{event_url(stored[other.event_id])}">{other.event_id}</a>' in page
    assert "$gone not here" in text(page) and "$nowhere not here" in text(page)


def test_event_page_shows_what_changed_and_the_full_state(admin_client, made):
    old = made.topic("old")
    new = made.topic("new")
    message = made.message()
    store_room(made.events)
    page = text(page_of(admin_client, new))
    assert re.search(rf"m\.room\.topic \S* ?{re.escape(old.event_id)} .*{re.escape(new.event_id)}", page)
    assert "Full state after the event: 3 entries" in page and "stored as state group" in page
    assert re.search(r"before after m\.room\.topic old \S+ .* new \S+", page)
    assert "The event changes nothing" in text(page_of(admin_client, message))


@pytest.mark.parametrize(
    "flags, words",
    [
        ({"rejected_reason": "membership: <no>"}, ["rejected", "membership: &lt;no&gt;"]),
        ({"soft_failed": True}, ["soft-failed", "never a forward extremity"]),
        ({"outlier": True}, ["outlier", "no place in the graph"]),
        ({}, ["accepted"]),
    ],
)
def test_event_page_tells_the_verdict(admin_client, made, flags, words):
    event = made.message(**flags)
    store_room(made.events)
    page = page_of(admin_client, event)
    assert all(word in page for word in words)


def test_event_whose_state_is_not_known_says_so(admin_client, made):
    event = made.message(prev=["$gone"])
    store_room(made.events)
    assert "is not known: events that it builds on are not here" in page_of(admin_client, event)


def test_redacted_event_leads_to_its_redaction_and_back(admin_client, made):
    message = made.message()
    redaction = made.redaction(message)
    store_room(made.events)
    page = text(page_of(admin_client, message))
    assert "redacted by" in page and redaction.event_id in page
    assert message.event_id in text(page_of(admin_client, redaction)).partition("redacts")[2]


def test_asking_about_a_user_is_answered_in_words(admin_client, made):
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.member(BOB, "join")
    message = made.message()
    store_room(made.events)
    assert "Shown. The user was joined at the event." in text(page_of(admin_client, message, user=BOB))
    page = text(page_of(admin_client, message, user="@eve:e.test"))
    assert "Hidden: the rule does not let this user see the event." in page and "history visibility joined" in page
    assert "the user is joined" in page  # a range


@pytest.mark.parametrize("user", ["eve", "@" + "e" * 300 + ":e", "@a\0:b", f"@{HOSTILE}", "@eve"])
def test_unusable_user_id_is_told_and_stays_text(admin_client, made, user):
    message = made.message()
    store_room(made.events)
    page = page_of(admin_client, message, user=user)
    assert "A user ID looks like" in page and HOSTILE not in page


def test_markup_in_an_event_stays_text(admin_client, made):
    event = made.send(
        {"type": HOSTILE, "state_key": HOSTILE, "content": {"body": HOSTILE + "\u0000\u202e"}, "sender": ALICE}
    )
    made.message()
    store_room(made.events)
    for page in (page_of(admin_client, event), room_page_of(admin_client, made.room_id)):
        assert "<script>alert(" not in page and "&lt;script&gt;alert(" in page


def test_event_ids_that_a_sender_chose_cannot_turn_the_page_around(admin_client):
    room = MadeRoom(version="1", room_id="!\u202eroom:a.test")
    below = room.send({"type": "m.x", "event_id": "$\u202eright:a.test"})
    above = room.send({"type": "m.x"}, prev=[below])
    store_room(room.events)
    page = page_of(admin_client, above)
    assert "\\u202eright" in page and "\u202eright:a.test</a>" not in page
    assert "\\u202eright" in page_of(admin_client, below, user=ALICE)
    assert "\\u202eroom" in room_page_of(admin_client, room.room_id, user=ALICE)


def test_huge_event_is_cut_and_its_bytes_are_a_link_away(admin_client, made):
    body = "y" * 60_000
    event = made.send({"type": "m.room.message", "content": {"body": body}})
    store_room(made.events)
    page = page_of(admin_client, event)
    assert len(page) < 4 * event_page.MOST_JSON + 60_000 and "more characters" in page
    url = reverse("admin:events_event_json", args=[Event.read.get(event_id=event.event_id).pk])
    answer = admin_client.get(url)
    assert answer.content == event.json and answer["X-Content-Type-Options"] == "nosniff"
    assert (answer["Content-Type"], answer["Content-Security-Policy"].split(";")[0]) == ("application/json", "sandbox")


def test_bytes_that_are_no_json_are_shown(admin_client, made):
    message = made.message()
    store_room(made.events)
    damage(message.event_id, b"\xff{not json")
    page = page_of(admin_client, message)
    assert "\\xff{not json" in page and "redacted form is not known" in page


@pytest.mark.parametrize("page", ["0", "2", "-1", "x", "99999999", "9" * 40, "²"])
def test_any_page_of_a_large_state_is_bounded(admin_client, made, page):
    for number in range(130):
        made.state("m.x", str(number), {})
    last = made.events[-1]
    store_room(made.events)
    found = page_of(admin_client, last, state_page=page)
    number = "2" if page in ("2", "99999999") else "1"
    assert f"page {number} of 2" in found and 'id="rp-full" open' in found
    assert found.count("<tr>") < 110
    assert f"page {number} of 2" in room_page_of(admin_client, made.room_id, state_page=page)


def test_event_with_very_many_prev_events_is_bounded(admin_client, made):
    event = made.message(prev=[f"$gone{number}" for number in range(1_000)])
    store_room(made.events)
    page = page_of(admin_client, event)
    assert page.count("not here") < 120 and "and more, see the JSON" in page
    assert "and 995 more" in room_page_of(admin_client, made.room_id)


def test_room_page_shows_flags_members_and_state(admin_client, made):
    made.member(BOB, "join")
    left = made.member(BOB, "leave")
    store_room(made.events)
    page = text(room_page_of(admin_client, made.room_id))
    assert "healthy" in page and "1 join, 1 leave" in page
    assert f"{BOB} leave {left.event_id}" in page and f"m.room.create version 10 {made.create.event_id}" in page
    Room.objects.update(current_state_unresolved=True)
    assert "current state not known" in text(room_page_of(admin_client, made.room_id))


def test_room_page_shows_the_leaves_of_a_fork(admin_client, made):
    one, other = made.message(prev=[made.alice]), made.message(prev=[made.alice])
    store_room(made.events)
    page = text(room_page_of(admin_client, made.room_id))
    assert one.event_id in page and other.event_id in page and page.count(", forward extremity") == 2


def test_room_with_a_gap_names_what_is_missing(admin_client, made):
    made.message(prev=["$gone"])
    store_room(made.events)
    page = text(room_page_of(admin_client, made.room_id))
    assert page.count("$gone not here") == 2 and "current state not known" in page


def test_last_events_have_words_and_links_to_what_they_build_on(admin_client, made):
    made.topic("no", rejected_reason="x")
    made.message(prev=[made.alice], soft_failed=True)
    made.message(outlier=True)
    made.message(prev=[made.alice])
    store_room(made.events)
    rows = last_events(admin_client, made.room_id)
    assert [re.search(r"\$[\w-]+", row)[0] for row in rows] == [event.event_id for event in reversed(made.events)]
    for word in ("rejected", "soft-failed", "outlier", "forward extremity"):
        assert sum(f", {word}" in row for row in rows) == 1
    numbers = dict(Event.read.values_list("event_id", "stream_ordering"))
    for event, row in zip(reversed(made.events), rows, strict=True):
        builds_on = [] if event.outlier else event.prev_event_ids
        assert re.findall(r'href="([^"]*)"', row) == [event_url(numbers[one]) for one in (event.event_id, *builds_on)]


def last_events(client, room_id):
    """The rows of the table, as HTML."""
    table = room_page_of(client, room_id).split('id="rp-last"')[1].split("</table>")[0]
    return re.findall(r"<tr><td>.*?</tr>", table, re.DOTALL)


def test_event_on_many_others_names_some_and_how_many_more(admin_client, made):
    leaves = [made.message(prev=[made.alice]) for _ in range(12)]
    made.message(prev=leaves)
    store_room(made.events)
    newest, *_ = last_events(admin_client, made.room_id)
    assert newest.count("<a href=") == 1 + 5 and "and 7 more" in newest


def test_room_of_more_events_shows_the_last_ones(admin_client, made):
    for _ in range(70):
        made.message()
    store_room(made.events)
    assert "Last 50 events" in room_page_of(admin_client, made.room_id)
    assert len(last_events(admin_client, made.room_id)) == 50


def test_queries_do_not_grow_with_what_is_shown(admin_client, made, django_assert_max_num_queries):
    for number in range(60):
        made.member(f"@user{number}:a.test", "join", sender=f"@user{number}:a.test")
    big = made.message(prev=[made.events[-n] for n in range(1, 40)])
    store_room(made.events)
    url = event_url(Event.read.get(event_id=big.event_id).stream_ordering)
    with django_assert_max_num_queries(16 + 10):  # the page, and session, user, form
        admin_client.get(url)
    with django_assert_max_num_queries(26 + 14):
        admin_client.get(url, {"user": BOB, "state_page": "1"})
    with django_assert_max_num_queries(22 + 10):
        admin_client.get(room_url(made.room_id))
    with django_assert_max_num_queries(28 + 10):
        admin_client.get(room_url(made.room_id), {"user": BOB, "type": "m.room.member"})


def test_staff_without_the_permission_get_neither_page_nor_bytes(client, django_user_model, made):
    message = made.message()
    store_room(made.events)
    staff = django_user_model.objects.create_user("staff", password="x", is_staff=True)
    client.force_login(staff)
    pk = Event.read.get(event_id=message.event_id).pk
    urls = [event_url(pk), reverse("admin:events_event_json", args=[pk]), room_url(made.room_id)]
    assert [client.get(url).status_code for url in urls] == [403, 403, 403]
    staff.user_permissions.set(Permission.objects.filter(codename__in=["view_event", "view_room"]))
    assert [client.get(url).status_code for url in urls] == [200, 200, 200]
    assert [client.post(url, {"sender": "@eve:e"}).status_code for url in (urls[0], urls[2])] == [403, 403]


@pytest.mark.parametrize(
    "claimed, said", [(0, "1970-01-01 00:00:00 UTC"), (2**62, "ms since 1970"), (-(2**62), "ms since")]
)
def test_any_time_may_be_claimed(admin_client, made, claimed, said):
    event = made.send({"type": "m.x", "origin_server_ts": 5})
    store_room(made.events)
    Event.objects.writable().filter(event_id=event.event_id).update(origin_server_ts=claimed)
    assert said in page_of(admin_client, event)


def test_event_that_is_not_here_has_no_bytes(admin_client):
    for number in ("5", "x", "9" * 30):
        assert admin_client.get(reverse("admin:events_event_json", args=[number])).status_code == 404


def test_pages_work_without_the_sites_templates(admin_client, made, settings):
    message = made.message()
    store_room(made.events)
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": []}]
    assert message.event_id in page_of(admin_client, message)
    assert made.room_id in room_page_of(admin_client, made.room_id)


def test_empty_room_has_a_page(admin_client):
    Room.objects.create(room_id="!empty:a", room_version="10")
    assert "There is no event yet." in room_page_of(admin_client, "!empty:a")
