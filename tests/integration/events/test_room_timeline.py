"""The timeline and the values on a room's page, and the search for events."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from events.admin import event_search, room_timeline
from events.admin.links import event_url, room_url
from events.models import Event
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.stored_rooms import damage, store_room

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert('x')</script>"


def words(page):
    return re.sub(r"\s+", " ", re.sub(r"<(style|script)[^>]*>.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL))


def room_page(client, made, **asked):
    answer = client.get(room_url(made.room_id), asked)
    assert answer.status_code == 200
    return answer.content.decode()


def timeline(page):
    """The rows of the timeline, as words."""
    body = re.search(r'<tbody id="rp-timeline-rows">(.*?)</tbody>', page, re.DOTALL)
    return [words(row).strip() for row in re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL)] if body else []


def older(page):
    found = re.search(r'id="rp-older" href="\?([^"#]*)', page)
    return dict(pair.split("=") for pair in found[1].replace("&amp;", "&").split("&")) if found else None


def said(made, text, sender=ALICE):
    return made.send({"type": "m.room.message", "sender": sender, "content": {"msgtype": "m.text", "body": text}})


@pytest.fixture
def made():
    return MadeRoom()


def test_the_name_is_in_the_title_and_values_are_in_words(admin_client, made):
    made.state("m.room.name", "", {"name": "The Lobby"})
    made.topic("Be kind")
    made.state("m.room.join_rules", "", {"join_rule": "invite"})
    made.state("m.room.power_levels", "", {"users": {ALICE: 100, BOB: 50}, "ban": 75, "events": {"m.room.name": 60}})
    made.member(BOB, "join")
    store_room(made.events)
    page = room_page(admin_client, made)
    assert "The Lobby" in re.search(r"<title>(.*?)</title>", page, re.DOTALL)[1]
    text = words(page)
    for value in (
        "m.room.topic Be kind",
        "m.room.join_rules invite",
        f"{ALICE} 100 {BOB} 50",
        "ban 75",
        "m.room.name 60",
    ):
        assert value in text, value
    assert "healthy" in text and "events 7" in text


def test_creators_of_newer_rooms_are_above_all_levels(admin_client):
    made = MadeRoom(version="12")
    made.state("m.room.power_levels", "", {"users": {BOB: 50}})
    store_room(made.events)
    assert f"{ALICE} creator, above all levels {BOB} 50" in words(room_page(admin_client, made))


def test_the_timeline_shows_sender_time_and_text_newest_first(admin_client, made):
    said(made, "first")
    said(made, "second", BOB)
    store_room(made.events)
    rows = timeline(room_page(admin_client, made))
    assert rows[0].endswith(f"{BOB} m.room.message second") and rows[0].startswith("2023-11-14 22:13:2")
    assert rows[1].endswith(f"{ALICE} m.room.message first") and len(rows) == 4


def test_pages_lead_to_the_beginning_without_a_gap(admin_client, made, monkeypatch):
    monkeypatch.setattr(room_timeline, "EVENTS_PER_PAGE", 4)
    for number in range(9):
        said(made, f"text {number}")
    store_room(made.events)
    found, asked = [], {}
    while asked is not None:
        page = room_page(admin_client, made, **asked)
        assert len(timeline(page)) <= 4
        found += timeline(page)
        asked = older(page)
    assert len(found) == len(made.events) == len(set(found))


def test_filters_find_what_lies_far_below(admin_client, made, monkeypatch):
    monkeypatch.setattr(room_timeline, "_EVENTS_PER_READ", 5)
    monkeypatch.setattr(room_timeline, "EVENTS_EXAMINED", 10)
    said(made, "needle", BOB)
    for number in range(30):
        said(made, f"hay {number}")
    store_room(made.events)
    page = room_page(admin_client, made, sender=BOB, type="m.room.message")
    assert timeline(page) == [] and "None of the events that were examined fits" in page
    rounds = 0
    while not timeline(page):
        asked = older(page)
        assert asked is not None
        page, rounds = (
            room_page(admin_client, made, sender=BOB, type="m.room.message", before=asked["before"]),
            rounds + 1,
        )
    assert [row.endswith("needle") for row in timeline(page)] == [True] and rounds == 3


def test_as_a_user_the_page_shows_what_this_user_sees_and_why(admin_client, made):
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    said(made, "before Bob")
    made.member(BOB, "join")
    said(made, "with Bob")
    made.member(BOB, "leave")
    said(made, "after Bob")
    store_room(made.events)
    page = room_page(admin_client, made, user=BOB)
    text = " ".join(timeline(page))
    assert "with Bob The user was joined at the event." in text
    assert "before Bob" not in text and "after Bob" not in text
    assert "The user has left the room, and sees what came before." in words(page)
    stranger = words(room_page(admin_client, made, user=EVE))
    assert "The user is no member of the room" in stranger and "may not read" in stranger


@pytest.mark.parametrize("user", ["bob", "@" + "b" * 300 + ":b", "@a\0:b", f"@{HOSTILE}"])
def test_an_unusable_user_is_refused_in_words(admin_client, made, user):
    store_room(made.events)
    page = room_page(admin_client, made, user=user)
    assert "A user ID looks like" in page and HOSTILE not in page


@pytest.mark.parametrize("before", ["x", "t1", "t" + "9" * 40 + "-1", HOSTILE, "t1-1\0"])
def test_an_unusable_token_is_refused_in_words(admin_client, made, before):
    store_room(made.events)
    page = room_page(admin_client, made, before=before)
    assert "rp-answer" in page and HOSTILE not in page


def test_hostile_text_stays_text(admin_client, made):
    said(made, f"{HOSTILE}\u202e\x1b")
    made.state("m.room.name", "", {"name": HOSTILE})
    store_room(made.events)
    page = room_page(admin_client, made)
    assert "<script>alert(" not in page and page.count("&lt;script&gt;alert(") >= 3
    assert "\\u202e\\x1b" in page and not {"\u202e", "\x1b"} & set(page)


def test_a_redacted_message_shows_nothing_of_its_text(admin_client, made):
    message = said(made, "a secret")
    made.redaction(message)
    store_room(made.events)
    Event.objects.writable().filter(event_id=message.event_id).update(redacted_by=made.events[-1].event_id)
    page = room_page(admin_client, made)
    assert "a secret" not in page and any("redacted" in row for row in timeline(page))


def test_damaged_json_is_named_on_the_page_and_the_rest_is_shown(admin_client, made):
    topic = made.topic("hello")
    made.state("m.room.name", "", {"name": "The Lobby"})
    store_room(made.events)
    damage(topic.event_id, b"\xff")
    page = words(room_page(admin_client, made))
    assert "is no text" in page and "m.room.topic content cannot be read" in page and "The Lobby" in page


def test_members_are_filtered_by_membership(admin_client, made):
    for number in range(3):
        made.member(f"@u{number}:a.test", "join")
    made.member("@u1:a.test", "leave")
    store_room(made.events)
    page = words(room_page(admin_client, made, membership="leave")).partition("Members")[2]
    assert "@u1:a.test leave" in page and "@u2:a.test join" not in page.partition("Last")[0]


def test_an_event_shows_its_value_its_relation_and_who_sees_it(admin_client, made):
    message = said(made, "hello")
    made.send(
        {
            "type": "m.reaction",
            "content": {"m.relates_to": {"rel_type": "m.annotation", "event_id": message.event_id, "key": "+1"}},
        }
    )
    store_room(made.events)
    reaction = Event.read.order_by("stream_ordering").last()
    page = words(admin_client.get(event_url(reaction.stream_ordering)).content.decode())
    assert "m.reaction accepted +1 event" in page and f"relates to {message.event_id}" in page
    assert f"Members who see it {ALICE} " in page


# --- search of events -------------------------------------------------------------------------------------------------


def search(client, **asked):
    answer = client.get(reverse("admin:events_event_search"), asked)
    assert answer.status_code == 200
    return answer.content.decode()


def found(page):
    return re.findall(r'<span class="rp-quiet">(\$[^<]*)</span></td>', page)


@pytest.fixture
def searched(made):
    """Events of two senders and three types; the IDs in the order of their positions."""
    said(made, "one")
    said(made, "two", BOB)
    made.topic("three")
    store_room(made.events)
    return [event.event_id for event in made.events]


def test_unusable_positions_and_times_of_a_search_are_named(admin_client, searched):
    assert "A position is a whole number" in search(admin_client, before="9" * 5_000)
    for asked in ({"since": "0001-01-01T00:00+23:59"}, {"until": "9999-12-31T23:59:59-23:59"}):
        assert "write a date (2026-01-31)" in search(admin_client, **asked)
    assert len(found(search(admin_client, until="9999-12-31T23:59:59"))) == len(searched)


def test_events_are_found_by_part_of_an_id(admin_client, searched):
    wanted = searched[3]
    for part in (wanted, wanted[:9], wanted[1:9], wanted[5:20]):
        assert found(search(admin_client, event=part)) == [wanted], part
    assert found(search(admin_client, event="$nowhere")) == [] and found(search(admin_client, event="%")) == []


def test_events_are_found_by_sender_type_and_room(admin_client, made, searched):
    assert found(search(admin_client, sender=BOB)) == [searched[3]]
    assert found(search(admin_client, type="m.room.message")) == [searched[3], searched[2]]
    assert found(search(admin_client, type="m.room.message", sender="@alice")) == [searched[2]]
    assert found(search(admin_client, room=made.room_id)) == searched[::-1]
    assert found(search(admin_client, room="!nowhere:a.test")) == []
    assert "Be kind" not in search(admin_client) and found(search(admin_client)) == []


def test_events_are_found_by_the_time_of_reception(admin_client, searched):
    now = datetime(2026, 1, 10, 12, tzinfo=UTC)
    events = list(Event.read.order_by("stream_ordering"))
    for number, event in enumerate(events):
        Event.objects.writable().filter(pk=event.pk).update(received_at=now + timedelta(hours=number))
    assert found(search(admin_client, since="2026-01-10 15:00")) == [searched[4], searched[3]]
    assert found(search(admin_client, until="2026-01-10 14:00")) == [searched[1], searched[0]]
    assert found(search(admin_client, since="2026-01-10", until="2026-01-10T13:30:00Z")) == [searched[1], searched[0]]
    assert found(search(admin_client, since="2026-01-11")) == []
    three = now + timedelta(hours=3)
    assert found(search(admin_client, since=f"{three.timestamp() * 1000:.0f}")) == [searched[4], searched[3]]
    assert found(search(admin_client, since="2099-01-01T00:00+01:00")) == [] == found(search(admin_client, since="0s"))


@pytest.mark.parametrize(
    "asked",
    [
        {"since": "yesterday"},
        {"since": "9223372036854775807"},
        {"until": "2026-13-45"},
        {"before": "x"},
        {"before": "9" * 40},
        {"sender": "x" * 300},
        {"type": "a\0"},
    ],
)
def test_an_unusable_search_is_refused_in_words(admin_client, searched, asked):
    page = search(admin_client, **asked)
    assert "rp-answer" in page and found(page) == []


def test_a_search_examines_some_events_and_goes_on_below(admin_client, made, monkeypatch):
    monkeypatch.setattr(event_search, "EVENTS_EXAMINED", 10)
    monkeypatch.setattr(event_search, "EVENTS_PER_PAGE", 2)
    for number in range(3):
        said(made, f"needle {number}", BOB)
    for number in range(25):
        said(made, f"hay {number}")
    store_room(made.events)
    ids, asked, pages = [], {"sender": BOB}, 0
    while asked is not None:
        page = search(admin_client, **asked)
        ids, pages = ids + found(page), pages + 1
        link = re.search(r'<a href="\?([^"]*)">(?:Older events|Search further back)', page)
        asked = {"sender": BOB, "before": re.search(r"before=(-?\d+)", link[1])[1]} if link else None
    assert ids == [event.event_id for event in made.events[4:1:-1]] and pages > 3


def test_hostile_events_stay_text_in_the_search(admin_client, made):
    made.send({"type": HOSTILE, "state_key": HOSTILE, "content": {"body": f"{HOSTILE}\u202e"}})
    store_room(made.events)
    page = search(admin_client, room=made.room_id, sender=HOSTILE[:0])
    assert "<script>alert(" not in page and "&lt;script&gt;alert(" in page and "\u202e" not in page


def test_the_search_needs_the_permission_to_see_events(client, django_user_model, searched):
    staff = django_user_model.objects.create_user("staff", password="x", is_staff=True)
    client.force_login(staff)
    assert client.get(reverse("admin:events_event_search")).status_code == 403
    staff.user_permissions.add(Permission.objects.get(codename="view_event"))
    assert client.get(reverse("admin:events_event_search")).status_code == 200


def many_messages(room_id, first, number):
    """Rows of so many messages in a room, from this position on."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, sender, topological_ordering,"
            " origin_server_ts, received_at) SELECT n, 'w', '$' || md5(n::text), %s, 'm.room.message', %s, n, n, %s"
            " FROM generate_series(%s, %s) AS n",
            [room_id, ALICE, timezone.now(), first, first + number - 1],
        )
        cursor.execute("ANALYZE events_event")


def plans_of_events(queries):
    read = [query["sql"] for query in queries if 'FROM "events_event"' in query["sql"]]
    assert read
    with connection.cursor() as cursor:
        for sql in read:
            cursor.execute("EXPLAIN " + sql)
            yield "\n".join(row[0] for row in cursor.fetchall())


@pytest.mark.parametrize("asked", [{"sender": "@nobody"}, {"event": "abc"}, {"type": "m.x", "until": "2026-01-01"}])
@pytest.mark.usefixtures("new_tables")
def test_a_search_reads_events_by_their_position(admin_client, made, monkeypatch, asked):
    monkeypatch.setattr(event_search, "EVENTS_EXAMINED", 3_000)
    store_room(made.events)
    many_messages(made.room_id, 101, 30_000)
    with CaptureQueriesContext(connection) as queries:
        search(admin_client, **asked)
    for plan in plans_of_events(queries):
        assert "Seq Scan" not in plan and "Sort" not in plan, plan


@pytest.mark.parametrize("page", ["room", "search"])
@pytest.mark.usefixtures("new_tables")
def test_a_large_room_that_is_quiet_is_read_without_the_events_of_others(admin_client, made, page):
    store_room(made.events)
    many_messages(made.room_id, 101, 6_000)
    many_messages("!busy:a.test", 10_001, 24_000)
    url = room_url(made.room_id) if page == "room" else f"{reverse('admin:events_event_search')}?room={made.room_id}"
    with CaptureQueriesContext(connection) as queries:
        assert admin_client.get(url).status_code == 200
    for plan in plans_of_events(queries):
        assert "events_event_pkey" not in plan, plan
