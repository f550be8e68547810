"""Every address of the site: nothing is changed by asking for a page, and nothing is shown or done for those who may not.

The addresses are those that Django resolves, so one that is added is asked as well.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from pipeline.models import Job
from streams.jobs.run import queue_job
from streams.models import Reader, StreamPosition
from tests.support.writing import append, as_instance, linear

pytestmark = pytest.mark.django_db(transaction=True)
#: What anybody may ask: probes, metrics, the login, followers' catch-up (which has a secret of its own), the way in, and the
#: description of the HTTP API.
OPEN = re.compile(r"/(|api/v1/openapi\.json|metrics|health.*|_synapse/.*|admin/login/|admin/logout/|admin/jsi18n/)")
#: Asking for these ends the session.
ENDS_SESSION = {"/admin/logout/"}
#: The HTTP API knows tokens only: a session is no right there.
API = "/api/v1/"
_PARAMETER = re.compile(r"<(?:(\w+):)?(\w+)>")
_GROUP = re.compile(r"\(\?P<(\w+)>[^()]*\)")
#: Tables that asking may write: who is logged in.
_MAY_CHANGE = {"django_session", "auth_user"}


def addresses(patterns=None, prefix="/") -> Iterator[str]:
    """Each of the site, with the row 1 or the name ``x`` where one is wanted."""
    for one in get_resolver().url_patterns if patterns is None else patterns:
        route = _GROUP.sub("x", str(one.pattern).lstrip("^").rstrip("$\\Z"))
        route = _PARAMETER.sub(lambda found: "1" if found[1] == "int" or found[2] == "object_id" else "x", route)
        if isinstance(one, URLResolver):
            yield from addresses(one.url_patterns, prefix + route)
        elif isinstance(one, URLPattern):
            yield prefix + route


ALL = sorted(set(addresses()))
GUARDED = [address for address in ALL if not OPEN.fullmatch(address)]
#: Where something is done by a POST, each with tests of its own.
ACTED_ON = ("/admin/actions/", "/admin/auth/", "/admin/password_change", "/admin/pipeline/job/")
ACTIONS = [
    "/admin/actions/disconnect/?name=k",
    "/admin/actions/end/?name=caches",
    "/admin/actions/end-blocker/?name=caches",
]


@pytest.fixture(autouse=True)
def quick(settings, monkeypatch):
    """Some two thousand requests: who asks is not read from the database each time, and refusals are not logged."""
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    known = cache(ModelBackend().get_user)
    monkeypatch.setattr(ModelBackend, "get_user", lambda _, user: known(user))
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def things(transactional_db):
    """Something that could be spoiled: a connection, a writer, jobs that wait, one of them dry and done."""
    with as_instance("w"):
        append()
    linear()
    Reader.objects.create(key="k", name="reader", kind="connection")
    job = queue_job("censor", {"days": 1}, "bob")
    dry = queue_job("censor", {"days": 1, "dry_run": True}, "bob")
    Job.objects.filter(pk=dry.pk).update(state="done", finished_at=Now())
    return {"job": job.pk, "dry": dry.pk}


def rows() -> dict[str, str]:
    """A digest of every table of ours."""
    found = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            if table not in _MAY_CHANGE and table != "streams_streamposition":
                name = connection.ops.quote_name(table)
                cursor.execute(
                    f"SELECT count(*), md5(coalesce(string_agg(t::text, '' ORDER BY t::text), '')) FROM {name} t"
                )
                found[table] = str(cursor.fetchone())
    return found


def state() -> object:
    """What must stay: all rows but those of positions, which looks change, and the states of these."""
    writers = StreamPosition.objects.order_by("stream", "instance_name").values_list("stream", "instance_name", "state")
    return rows(), list(writers)


def of_jobs(things) -> list[str]:
    jobs = "/admin/pipeline/job/"
    return [f"{jobs}{things['job']}/cancel/", f"{jobs}{things['dry']}/carry-out/", f"{jobs}queue/?kind=purge+orphans"]


def test_the_addresses_are_all_there():
    assert {
        "/admin/live/",
        "/admin/actions/end/",
        "/admin/pipeline/job/queue/",
        "/admin/auth/user/1/delete/",
    } <= set(ALL)
    assert len(ALL) > 100


def test_asking_for_a_page_changes_nothing_whoever_asks(things):
    client = Client(raise_request_exception=True)
    client.force_login(User.objects.create_superuser("boss"))
    before = state()
    for address in [*ALL, *ACTIONS, *of_jobs(things)]:
        if address not in ENDS_SESSION:
            assert client.get(address).status_code < 500, address
    assert state() == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("who", ["nobody", "ordinary"])
def test_those_who_are_no_staff_see_nothing_and_change_nothing(things, who):
    client = Client()
    if who != "nobody":
        user = User.objects.create_user("u")
        user.user_permissions.set(Permission.objects.all())
        client.force_login(user)
    before = state()
    for address in [*GUARDED, *ACTIONS, *of_jobs(things)]:
        for method in (client.get, client.post):
            answer = method(address)
            refused = (401, 404, 405) if address.startswith(API) else (302, 403, 405)
            assert answer.status_code in refused, (method.__name__, address, answer.status_code)
            if answer.status_code == 302:
                assert answer["Location"].startswith("/admin/login/"), address
    assert state() == before


def test_staff_without_permissions_change_nothing(things):
    client = Client()
    client.force_login(User.objects.create_user("staff", is_staff=True))
    before = state()
    for address in [*GUARDED, *ACTIONS, *of_jobs(things)]:
        assert client.post(address, {"post": "yes", "confirmed": "yes"}).status_code < 500, address
    for address in [*ACTIONS, *of_jobs(things)]:
        assert client.get(address).status_code == client.post(address).status_code == 403, address
    assert state() == before
    assert not LogEntry.objects.exists()


def test_no_row_of_ours_can_be_changed_or_deleted_by_hand(things):
    """Only users and groups have forms; whatever the streams wrote is read-only, even for those who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    before = state()
    for address in GUARDED:
        if "/auth/" not in address and not address.startswith(
            ("/admin/actions/", "/admin/password_change", "/admin/pipeline/job/")
        ):
            client.post(
                address, {"post": "yes", "_selected_action": "1", "action": "delete_selected", "confirmed": "yes"}
            )
    for address in ("add/", "1/delete/", f"{things['job']}/delete/", f"{things['job']}/change/", ""):
        sent = {"post": "yes", "_selected_action": str(things["job"]), "action": "delete_selected", "kind": "x"}
        client.post(f"/admin/pipeline/job/{address}", sent)
    assert state() == before
