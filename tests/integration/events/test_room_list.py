"""The list of rooms in the admin: names, orders, filters and searches, each by an index or over narrow rows."""

from __future__ import annotations

import csv
import re
from io import StringIO

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from events.models import Room, RoomSummary
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert('x')</script>"


def made_room(room_id, name=None, alias=None, messages=0, members=(), **how):
    made = MadeRoom(room_id=room_id, **how)
    for event_type, key, value in (("m.room.name", "name", name), ("m.room.canonical_alias", "alias", alias)):
        if value is not None:
            made.state(event_type, "", {key: value})
    for user in members:
        made.member(user, "join")
    for _ in range(messages):
        made.message()
    return made


@pytest.fixture
def rooms():
    """Three rooms: one with a name, one with an alias, one with members alone."""
    made = [
        made_room("!one:a.test", "The Lobby", "#lobby:a.test", messages=9),
        made_room("!two:a.test", None, "#Support:a.test", messages=4, members=[BOB, "@cat:c.test"]),
        made_room("!three:a.test", messages=1, members=[BOB]),
    ]
    first = 2
    for room in made:
        store_room(room.events, first)
        first += 100
    return made


def page_of(client, **asked):
    answer = client.get(reverse("admin:events_room_changelist"), asked)
    assert answer.status_code == 200, answer.status_code
    return answer.content.decode()


def listed(page):
    """The rooms' IDs in the order of the list."""
    found = re.findall(r"/admin/events/room/(![a-z0-9]+)_3Aa\.test/change/", page)
    return [f"{name}:a.test" for name in dict.fromkeys(found)]


def words(page):
    return re.sub(r"\s+", " ", re.sub(r"<(style|script)[^>]*>.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL))


def test_rooms_are_listed_by_name_with_their_figures(admin_client, rooms):
    page = words(page_of(admin_client))
    assert "The Lobby #lobby:a.test !one:a.test" in page and "#Support:a.test !two:a.test" in page
    assert f"{ALICE}, {BOB} !three:a.test" in page
    assert "2023-11-14 22:13:20" in page and page.count("healthy") >= 3
    assert "13" in page  # events of the first


def test_a_healthy_room_shows_no_icon_of_trouble(admin_client, rooms):
    page = page_of(admin_client)
    assert (
        "icon-no" not in page
        and ">False<" not in page
        and "close" not in re.findall(r"material-symbols[^>]*>(\w+)<", page)
    )


@pytest.mark.parametrize(
    "order, expected",
    [("2", "three two one"), ("-2", "one two three"), ("-1", "two three one"), ("0", "one"), ("3", "one two three")],
)
def test_each_order_is_kept(admin_client, rooms, order, expected):
    RoomSummary.objects.filter(pk="!two:a.test").update(active_on="2030-01-01", active_at="2030-01-01T00:00:00Z")
    RoomSummary.objects.filter(pk="!three:a.test").update(active_on="2040-01-01", active_at="2040-01-01T00:00:00Z")
    found = [room_id[1:].partition(":")[0] for room_id in listed(page_of(admin_client, o=order))]
    assert found[: len(expected.split())] == expected.split()


@pytest.mark.parametrize(
    "term, expected",
    [
        ("lobby", {"one"}),
        ("LOBBY", {"one"}),
        ("#support", {"two"}),
        ("hree:a", {"three"}),
        ("!one", {"one"}),
        (BOB, {"two", "three"}),
        ("@cat", {"two"}),
        ("@", set()),
        ("%", set()),
        ("nowhere", set()),
        ("x" * 400, set()),
        ("  ", {"one", "two", "three"}),
    ],
)
def test_searches_find_names_aliases_members_and_parts_of_ids(admin_client, rooms, term, expected):
    assert {room_id[1:].partition(":")[0] for room_id in listed(page_of(admin_client, q=term))} == expected


def test_a_name_in_another_script_is_found_in_any_case(admin_client):
    store_room(made_room("!umlaut:a.test", "Ärger").events)
    for term in ("Ärger", "ärger"):
        assert listed(page_of(admin_client, q=term)) == ["!umlaut:a.test"]


def test_health_and_version_filter(admin_client, rooms):
    gap = MadeRoom(room_id="!gap:a.test", version="9")
    gap.message(prev=["$gone"])
    store_room(gap.events, 900)
    assert listed(page_of(admin_client, health="unknown")) == ["!gap:a.test"]
    Room.objects.filter(pk="!gap:a.test").update(current_state_unresolved=False, visibility_unresolved=False)
    assert listed(page_of(admin_client, health="gaps")) == ["!gap:a.test"]
    assert len(listed(page_of(admin_client, health="healthy"))) == 3
    assert listed(page_of(admin_client, version="9")) == ["!gap:a.test"]
    assert len(listed(page_of(admin_client, version="made up"))) == 4


def test_hostile_names_stay_text(admin_client):
    store_room(made_room("!hostile:a.test", f"{HOSTILE}\u202eturned\x1b").events)
    page = page_of(admin_client)
    assert "<script>alert(" not in page and "&lt;script&gt;alert(" in page
    assert "\\u202eturned\\x1b" in page and not {"\u202e", "\x1b"} & set(page)


def test_names_in_a_csv_are_those_of_the_rooms_and_no_formulas(admin_client):
    name = """=R&D <b>"x"</b> it's &lt;"""
    store_room(made_room("!named:a.test", name).events)
    (row,) = list(csv.reader(StringIO(page_of(admin_client, format="csv"))))[1:]
    assert row[0].startswith(f"'{name}")


def test_queries_do_not_grow_with_the_rooms(admin_client, rooms, django_assert_max_num_queries):
    for number in range(30):
        store_room(made_room(f"!more{number}:a.test").events, 2_000 + 10 * number)
    with django_assert_max_num_queries(12):
        page_of(admin_client)


# --- plans ------------------------------------------------------------------------------------------------------------

ROOMS = 20_000


@pytest.fixture
def many_rooms():
    """Rows of many rooms, written plainly; the triggers make their summaries."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO events_room (room_id, room_version) SELECT '!r' || n || ':a.test', '10' "
            "FROM generate_series(1, %s) AS n",
            [ROOMS],
        )
        cursor.execute(
            "UPDATE events_roomsummary SET joined = length(room_id) + ascii(right(room_id, 8)), name = 'Room ' || room_id, "
            "events = hashtext(room_id) & 1023, size = events_size(hashtext(room_id) & 1023), "
            "active_on = '2026-01-01'::date - (hashtext(room_id) & 255)"
        )
        cursor.execute(
            "INSERT INTO events_currentstate (room_id, type, state_key, event_id, membership) "
            "SELECT '!r' || n || ':a.test', 'm.room.member', '@user' || n || ':a.test', '$e' || n, 'join' "
            "FROM generate_series(1, %s) AS n",
            [ROOMS],
        )
        cursor.execute("ANALYZE events_room, events_roomsummary, events_currentstate, events_backwardextremity")


def plans(client, **asked):
    """Plans of the statements that read rooms, as text."""
    with CaptureQueriesContext(connection) as queries:
        page_of(client, **asked)
    found = []
    with connection.cursor() as cursor:
        for query in queries:
            if "events_roomsummary" in query["sql"] and query["sql"].startswith("SELECT"):
                cursor.execute("EXPLAIN " + query["sql"])
                found.append("\n".join(row[0] for row in cursor.fetchall()))
    return found


@pytest.mark.usefixtures("new_tables")
def test_each_order_and_the_search_for_a_member_have_an_index(admin_client, many_rooms):
    """One test, because its rooms take longer than all of the plans."""
    for asked, index in (
        ({}, "events_roomsummary_active"),
        ({"o": "-3"}, "events_roomsummary_active"),
        ({"o": "2"}, "events_roomsummary_size"),
        ({"o": "-1"}, "events_roomsummary_joined"),
        ({"o": "0"}, "events_roomsummary_name"),
        ({"q": "@user77:"}, "events_currentstate_user"),
    ):
        found = plans(admin_client, **asked)
        assert any(index in plan for plan in found), (asked, found)
        assert "Seq Scan on events_room " not in "\n".join(found), asked
        assert "Seq Scan on events_currentstate" not in "\n".join(found), asked
