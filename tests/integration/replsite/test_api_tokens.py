"""The admin pages of tokens: who makes and revokes which, what is shown once, and what the log keeps."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User

from replsite.api.models import ApiToken
from replsite.api.tokens import find_token, make_token

pytestmark = pytest.mark.django_db
LIST = "/admin/replsite_api/apitoken/"
MAKE = f"{LIST}make/"


@pytest.fixture
def staff(client):
    """``staff("add_apitoken")``: a client of a user who may do that."""

    def log_in(*permissions: str):
        user = User.objects.create_user("ann", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=["view_apitoken", *permissions]))
        client.force_login(user)
        return client

    return log_in


def text(page) -> str:
    return page.content.decode()


def test_a_token_is_made_and_shown_once(staff):
    client = staff("add_apitoken")
    page = client.post(MAKE, {"name": "nightly <b>", "days": 7})
    (token,) = ApiToken.objects.all()
    (shown,) = re.findall(r"rsa_[\w-]{43}", text(page))
    assert "no-store" in page["Cache-Control"]
    assert find_token(shown) == token
    assert "nightly &lt;b&gt;" in text(page)
    for path in (LIST, f"{LIST}{token.pk}/change/"):
        assert shown not in text(client.get(path))
        assert token.digest not in text(client.get(path))
    (entry,) = LogEntry.objects.all()
    assert shown not in entry.change_message


@pytest.mark.parametrize("given", [{"name": "", "days": 7}, {"name": "x", "days": 0}, {"name": "x", "days": 4000}])
def test_an_unusable_token_is_not_made(staff, given):
    page = staff("add_apitoken").post(MAKE, given)
    assert 'role="alert"' in text(page)
    assert not ApiToken.objects.exists()


def test_without_the_permission_none_is_made_or_revoked(staff):
    client = staff()
    assert "Make a token" not in text(client.get(LIST))
    assert client.post(MAKE, {"name": "x", "days": 1}).status_code == 403
    token, _ = make_token(User.objects.get(), "mine", 1)
    assert client.post(f"{LIST}{token.pk}/revoke/").status_code == 403
    assert ApiToken.objects.get().revoked_at is None


def test_a_token_is_revoked_after_a_question(staff):
    client = staff("change_apitoken")
    token, shown = make_token(User.objects.get(), "mine", 1)
    assert "Revoke mine?" in text(client.get(f"{LIST}{token.pk}/revoke/"))
    assert find_token(shown) is not None, "looking does nothing"
    assert client.post(f"{LIST}{token.pk}/revoke/").status_code == 302
    assert find_token(shown) is None
    assert LogEntry.objects.get().change_message == "Revoked."


def test_tokens_of_others_need_a_further_permission(staff):
    client = staff("add_apitoken", "change_apitoken")
    other = User.objects.create_user("zoe", is_staff=True)
    token, _ = make_token(other, "of zoe", 1)
    assert "of zoe" not in text(client.get(LIST))
    assert client.get(f"{LIST}{token.pk}/revoke/").status_code == 404
    client.post(MAKE, {"name": "x", "days": 1, "user": "zoe"})
    assert ApiToken.objects.get(name="x").user.username == "ann"
    User.objects.get(username="ann").user_permissions.add(Permission.objects.get(codename="manage_apitokens"))
    assert "of zoe" in text(client.get(LIST))
    client.post(MAKE, {"name": "y", "days": 1, "user": "zoe"})
    assert ApiToken.objects.get(name="y").user == other
    assert "no active staff user" in text(client.post(MAKE, {"name": "z", "days": 1, "user": "nobody"}))


def test_no_token_acts_for_a_user_with_more_permissions_than_its_maker_has(staff):
    client = staff("add_apitoken", "manage_apitokens")
    User.objects.create_superuser("root")
    other = User.objects.create_user("zoe", is_staff=True)
    other.user_permissions.set(Permission.objects.filter(codename="carry_out_job"))
    for name in ("root", "zoe"):
        assert "permissions that you lack" in text(client.post(MAKE, {"name": "x", "days": 1, "user": name}))
    assert not ApiToken.objects.exists()
    User.objects.filter(username="ann").update(is_superuser=True)
    client.post(MAKE, {"name": "y", "days": 1, "user": "root"})
    assert ApiToken.objects.get().user.username == "root"


def test_the_page_about_the_api_is_for_staff(client, admin_client):
    page = text(admin_client.get("/api/"))
    assert "/api/v1/rooms/{room_id}/purge_history" in page
    assert 'href="/api/v1/openapi.json"' in page
    client.logout()
    assert client.get("/api/").status_code == 302
