"""Sessions of browsers: the site knows again which ones are real."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connections
from django.test import Client

from replsite.http import sessions
from replsite.http.request_places import RequestPlaces, request_threads_end
from replsite.http.sessions import is_real

pytestmark = pytest.mark.django_db


def test_a_session_is_real_from_the_login_to_the_logout():
    client = Client()
    client.force_login(User.objects.create_superuser("viewer"))
    key = client.session.session_key
    assert key is not None and is_real(key)
    assert client.get("/admin/").status_code == 200
    client.logout()
    client.cookies["sessionid"] = key
    assert client.get("/admin/").status_code == 302
    assert not is_real(key)


def test_a_session_of_another_process_is_real_once_it_was_asked_for():
    client = Client()
    client.force_login(User.objects.create_superuser("viewer"))
    key = client.session.session_key
    assert key is not None
    client.cookies["sessionid"] = "madeup"
    client.get("/admin/")
    sessions._real.clear()
    client.cookies["sessionid"] = key
    assert client.get("/admin/").status_code == 200
    assert is_real(key) and not is_real("madeup")


@pytest.mark.django_db(transaction=True)
def test_a_session_that_was_deleted_elsewhere_keeps_no_place_for_pages_that_do_not_ask_for_it():
    """The page for an address that does not exist, for instance: its user could keep all others out for ever."""
    client = Client()
    client.force_login(User.objects.create_superuser("viewer"))
    key = client.session.session_key
    assert key is not None and is_real(key)

    async def no_such_page(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})

    async def ask() -> None:
        places = RequestPlaces(no_such_page, pages=1)
        await places._pages.enter()
        headers = [(b"cookie", f"sessionid={key}".encode())]
        await places({"type": "http", "path": "/nowhere/", "headers": headers}, None, lambda _: asyncio.sleep(0))
        places._pages.at_work = 0
        await request_threads_end()
        while not places._users.is_full:
            places._users._free.get_nowait().executor.submit(connections.close_all).result()

    asyncio.run(ask())
    assert is_real(key)
    Session.objects.all().delete()
    asyncio.run(ask())
    assert not is_real(key)
