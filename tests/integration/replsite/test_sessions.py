"""Sessions of browsers: the site knows again which ones are real."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from replsite.http import sessions
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
