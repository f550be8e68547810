"""IDs of any characters in addresses: line breaks and slashes in the IDs of rooms, events, users and readers.

The addresses are those that Django resolves, so one that is added is asked as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote as admin_quote
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, resolve, reverse

from replsite.api.tokens import make_token
from streams.admin.base import ReadOnlyAdmin
from streams.models import Reader
from tests.support.made_rooms import BOB, MadeRoom
from tests.support.stored_rooms import store_room

ODD = ["a\nb", "\n", "a\r\u2028b\x85", "a//b/", "\n/\n"]
_PARAMETER = re.compile(r"<(path|any_text):(\w+)>")
_OF_DJANGO = ("/admin/auth/", "/admin/r/")  # users, groups and content types have numbers


def routes(patterns=None, prefix="/") -> Iterator[str]:
    """Each address with an ID, as ``/rooms/<any_text:room_id>``."""
    for one in get_resolver().url_patterns if patterns is None else patterns:
        route = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from routes(one.url_patterns, route)
        elif isinstance(one, URLPattern) and _PARAMETER.search(route) and not route.startswith(_OF_DJANGO):
            yield route


def filled(route: str, **values: str) -> str:
    return _PARAMETER.sub(lambda found: quote(values.get(found[2], values["other"]), safe=""), route)


def ids(odd: str) -> dict[str, str]:
    """In room versions 1 and 2 others choose the IDs of rooms and events, and end them as they like."""
    return {"room_id": f"!{odd}:a.test{odd}", "event_id": f"${odd}:a.test{odd}", "user_id": BOB, "other": f"x{odd}"}


@pytest.mark.parametrize("odd", ODD)
def test_an_address_leads_to_its_page_whatever_the_id(odd):
    found = list(routes())
    assert {"/api/v1/rooms/<any_text:room_id>", "/admin/events/room/<any_text:object_id>/change/"} <= set(found)
    for route in found:
        given = ids(odd)
        match = resolve(unquote(filled(route, **given)))
        wanted = {name: given.get(name, given["other"]) for _, name in _PARAMETER.findall(route)}
        assert (f"/{match.route}", match.kwargs) == (route, wanted)
        if match.url_name:
            assert resolve(unquote(reverse(match.view_name, kwargs=match.kwargs))).kwargs == match.kwargs


@pytest.fixture
def caller(admin_user):
    return Client(headers={"authorization": f"Bearer {make_token(admin_user, 'a script', 1, read_only=True)[1]}"})


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("odd", ODD)
def test_pages_show_rows_whatever_their_id(odd, admin_client, caller):
    given = ids(odd)
    made = MadeRoom("1", given["room_id"])
    made.member(BOB, "join")
    made.send({"type": "m.room.message", "sender": BOB, "event_id": given["event_id"], "content": {"body": "hi"}})
    store_room(made.events)
    Reader.objects.create(key=f"x{odd}", name=odd, kind="connection")
    asked = set()
    for model, pages in admin.site._registry.items():
        if not isinstance(pages, ReadOnlyAdmin):
            continue
        page = f"admin:{model._meta.app_label}_{model._meta.model_name}_"
        for csv in ({}, {"format": "csv"}):
            assert admin_client.get(reverse(f"{page}changelist"), csv).status_code == 200, page
        for row in model._base_manager.all():
            asked.add(row.pk)
            for name in ("change", "history"):
                address = reverse(f"{page}{name}", args=[admin_quote(row.pk)])
                assert admin_client.get(address, {"user": BOB}).status_code == 200, address
    assert {given["room_id"], given["event_id"], f"x{odd}"} <= asked
    for route in routes():
        if {name for _, name in _PARAMETER.findall(route)} <= set(given):
            answer = caller.get(filled(route, **given), {"event_id": given["event_id"]})
            assert answer.status_code in (200, 405), route  # 405: it wants a POST
    assert caller.get(f"/api/v1/rooms/{quote(given['room_id'])}").json()["room_id"] == given["room_id"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "text", ["\0", "%ED%A0%80", "\n\0"], ids=["NUL", "half a surrogate pair", "line break and NUL"]
)
def test_what_no_id_can_be_is_no_error(text, admin_client, caller):
    for route in routes():
        address = filled(route, other="~").replace("~", quote(text, safe="%"))
        answer = (caller if route.startswith("/api/") else admin_client).get(address, {"event_id": "$x"})
        assert answer.status_code < 500, address
