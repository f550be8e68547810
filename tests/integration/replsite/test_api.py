"""The HTTP API: what it answers, who may, what it changes, and that every change is in the admin's log."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from datetime import timedelta

import pytest
from asgiref.sync import ThreadSensitiveContext
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from events.notifier import notifier
from events.reading.state_at import state_at
from events.sending.send import NewEvent, create_room
from pipeline.models import Job, JobState
from replsite.api import access
from replsite.api.api import api
from replsite.api.models import ApiToken
from replsite.api.tokens import make_token
from replsite.live_rows.shared import SHARED
from streams.db import driver
from streams.holds import end
from streams.models import ParkedFact, Reader, StoredCursor, StreamPosition
from tests.support.async_waiting import wait_for
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, held_open, linear, wait_for_linear, writer_waits_for

pytestmark = pytest.mark.django_db(transaction=True)
API = "/api/v1"
HOSTILE = '<b>"\u202e\u0007'


class Caller:
    """A client with a token."""

    def __init__(self, text: str) -> None:
        self._client = Client(headers={"authorization": f"Bearer {text}"})

    def get(self, path: str, status: int = 200, **query):
        return self._answer(self._client.get(f"{API}{path}", query), status)

    def post(self, path: str, body=None, status: int = 200):
        made = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        return self._answer(self._client.post(f"{API}{path}", **made), status)

    @staticmethod
    def _answer(answer, status: int):
        assert answer.status_code == status, answer.content
        return answer.json()


@pytest.fixture
def caller(transactional_db):
    """``caller("view_room")``: of a token of a user who may do that."""

    def make(*permissions: str, read_only: bool = False, days: int = 1) -> Caller:
        user, _ = User.objects.get_or_create(username="ann", defaults={"is_staff": True})
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return Caller(make_token(user, "a script", days, read_only=read_only)[1])

    return make


@pytest.fixture
def talk(transactional_db):
    """A room with a name, two members and five messages."""
    made = create_room("@ann:site")
    made.set_state("@ann:site", "m.room.name", {"name": "The kitchen"})
    made.join("@bob:site")
    made.add([NewEvent("@ann:site", "m.room.message", {"body": f"message {n}"}) for n in range(5)])
    linear()
    return made


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_the_text_of_a_token_is_not_stored(caller):
    user = User.objects.create_user("ann", is_staff=True)
    token, text = make_token(user, "a script", 1)
    assert token.digest == hashlib.sha256(text.encode()).hexdigest()
    assert text not in json.dumps(list(ApiToken.objects.values()), default=str)
    assert text.startswith(token.hint)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer x", "Basic eDp5", f"Bearer rsa_{'A' * 43}", "Bearer rsa_\x00"]
)
def test_without_a_valid_token_nothing_is_answered(client, header):
    for path in ("/streams", "/rooms", "/jobs/1", "/users/@a:b/sync"):
        answer = client.get(f"{API}{path}", headers={"authorization": header} if header else {})
        assert answer.status_code == 401
        assert answer["WWW-Authenticate"] == "Bearer"
        assert answer.json()["errcode"] in ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN")


def test_a_session_is_no_token(admin_client):
    assert admin_client.get(f"{API}/streams").status_code == 401


@pytest.mark.parametrize(
    ("what", "values"),
    [
        (ApiToken, {"expires_at": timezone.now() - timedelta(seconds=1)}),
        (ApiToken, {"revoked_at": timezone.now()}),
        (User, {"is_active": False}),
        (User, {"is_staff": False}),
    ],
    ids=["expired", "revoked", "user not active", "user no longer staff"],
)
def test_a_token_ends(caller, what, values):
    mine = caller()
    mine.get("/token")
    what.objects.update(**values)
    mine.get("/token", 401)


def test_a_token_says_whose_it_is_and_when_it_was_used(caller):
    found = caller("view_room").get("/token")
    assert (found["name"], found["user"], found["permissions"]) == ("a script", "ann", ["events.view_room"])
    assert ApiToken.objects.get().last_used_at is not None


def test_a_read_only_token_changes_nothing(caller):
    mine = caller("queue_job", read_only=True)
    assert mine.post("/jobs", {"kind": "check streams"}, 403)["errcode"] == "M_FORBIDDEN"
    assert not Job.objects.exists()
    mine.get("/jobs/kinds")


@pytest.mark.parametrize(
    ("method", "path", "permission"),
    [
        ("get", "/rooms", "events.view_room"),
        ("get", "/rooms/!a:b", "events.view_room"),
        ("get", "/rooms/!a:b/members", "events.view_room"),
        ("get", "/rooms/!a:b/state", "events.view_room"),
        ("get", "/rooms/!a:b/messages", "events.view_event"),
        ("get", "/rooms/!a:b/jobs", "pipeline.view_job"),
        ("get", "/events/$a", "events.view_event"),
        ("get", "/events/$a/state", "events.view_event"),
        ("get", "/users/@a:b/rooms", "events.view_room"),
        ("get", "/users/@a:b/rooms/!a:b/messages", "events.view_event"),
        ("get", "/users/@a:b/visibility?event_id=$a", "events.view_event"),
        ("get", "/users/@a:b/sync", "events.view_event"),
        ("get", "/jobs", "pipeline.view_job"),
        ("get", "/jobs/1", "pipeline.view_job"),
        ("post", "/jobs/1/carry_out", "pipeline.carry_out_job"),
        ("post", "/jobs/1/cancel", "pipeline.cancel_job"),
        ("post", "/streams/caches/abort", "streams.end_holder"),
        ("post", "/readers/r/disconnect", "streams.disconnect_reader"),
        ("post", "/readers/r/forget", "streams.forget_reader"),
        ("post", "/readers/r/resync", "streams.resync_reader"),
        ("get", "/readers/r/replay", "streams.resync_reader"),
        ("post", "/readers/r/replay", "streams.resync_reader"),
        ("get", "/readers/r/parked", "streams.view_parkedfact"),
        ("post", "/readers/r/parked/retry", "streams.retry_parked"),
        ("post", "/readers/r/parked/drop", "streams.drop_parked"),
        ("post", "/streams/caches/end-blocker", "streams.end_holder"),
        ("post", "/jobs/1/resume", "pipeline.carry_out_job"),
    ],
)
def test_a_missing_permission_is_named(caller, method, path, permission):
    refused = caller()._client
    answer = getattr(refused, method)(f"{API}{path}")
    assert answer.status_code == 403
    assert answer.json() == {
        "errcode": "M_FORBIDDEN", "error": f"This needs the permission {permission}.", "permission": permission,
    }  # fmt: skip
    assert not LogEntry.objects.exists()


def test_each_token_has_a_rate_of_its_own(caller, settings):
    settings.REPLSITE_API_REQUESTS_PER_MINUTE = 3
    mine, other = caller(), caller()
    for _ in range(3):
        mine.get("/token")
    answer = mine._client.get(f"{API}/token")
    assert answer.status_code == 429
    assert answer.json()["errcode"] == "M_LIMIT_EXCEEDED"
    assert 1 <= int(answer["Retry-After"]) <= 20
    other.get("/token")


def test_the_rate_comes_back_with_time(monkeypatch, settings, rf):
    settings.REPLSITE_API_REQUESTS_PER_MINUTE = 60
    now = [100.0]
    monkeypatch.setattr(access.time, "monotonic", lambda: now[0])
    request, rate = rf.get("/"), access.RatePerToken()
    request.auth = ApiToken(pk=1)
    assert [rate.allow_request(request) for _ in range(61)] == [True] * 60 + [False]
    assert rate.wait() == 1.0
    now[0] += 1.5
    assert [rate.allow_request(request) for _ in range(2)] == [True, False]


# --- rooms ------------------------------------------------------------------------------------------------------------


def test_rooms_are_listed_with_their_names_in_pages(caller, talk):
    others = [create_room("@zoe:site").room_id for _ in range(2)]
    mine = caller("view_room")
    first = mine.get("/rooms", limit=2)
    second = mine.get("/rooms", limit=2, **{"from": first["next_batch"]})
    assert second["next_batch"] is None
    listed = {room["room_id"]: room for room in first["rooms"] + second["rooms"]}
    assert sorted(listed) == sorted([talk.room_id, *others])
    assert listed[talk.room_id]["name"] == "The kitchen"
    assert listed[talk.room_id]["join_rules"] == "public"
    assert [room["room_id"] for room in mine.get("/rooms", user_id="@bob:site")["rooms"]] == [talk.room_id]
    assert [room["room_id"] for room in mine.get("/rooms", search=talk.room_id[3:9])["rooms"]] == [talk.room_id]
    assert [room["room_id"] for room in mine.get("/rooms", search="the KITCHEN")["rooms"]] == [talk.room_id]
    assert mine.get("/rooms", search="a\x00")["rooms"] == []


def test_a_name_that_is_no_text_is_left_out(caller, talk):
    talk.set_state("@ann:site", "m.room.topic", {"topic": {"no": "text"}})
    talk.set_state("@ann:site", "m.room.name", {"name": HOSTILE})
    found = caller("view_room").get(f"/rooms/{talk.room_id}")
    assert (found["name"], found["topic"]) == (HOSTILE, None)


def test_a_room_is_shown_with_its_members_and_extremities(caller, talk):
    mine = caller("view_room", "view_event")
    found = mine.get(f"/rooms/{talk.room_id}")
    assert found["members"] == {"join": 2}
    assert found["forward_extremities"]
    members = mine.get(f"/rooms/{talk.room_id}/members", limit=1)
    assert [one["user_id"] for one in members["members"]] == ["@ann:site"]
    rest = mine.get(f"/rooms/{talk.room_id}/members", **{"from": members["next_batch"]})
    assert [one["user_id"] for one in rest["members"]] == ["@bob:site"]
    assert mine.get("/rooms/!none:site", 404)["errcode"] == "M_NOT_FOUND"


def test_a_state_is_paged_and_is_that_at_an_event(caller, talk):
    mine = caller("view_room", "view_event")
    named = mine.get(f"/rooms/{talk.room_id}/state", type="m.room.name")["state"]
    assert [event["content"]["name"] for event in named] == ["The kitchen"]
    found, start = [], 0
    while start is not None:
        page = mine.get(f"/rooms/{talk.room_id}/state", limit=3, **{"from": start})
        found, start = found + page["state"], page["next_batch"]
    assert len(found) == page["total"]
    create = next(event["event_id"] for event in found if event["type"] == "m.room.create")
    assert len(mine.get(f"/rooms/{talk.room_id}/state", at=create)["state"]) == 1
    mine.get(f"/rooms/{talk.room_id}/state", 404, at="$elsewhere")


@pytest.mark.parametrize("path", ["/rooms", "/users/@bob:site/sync"])
def test_a_method_that_is_not_there_is_refused_in_words(caller, path):
    refused = caller().post(path, status=405)
    assert refused["errcode"] == "M_UNRECOGNIZED"
    assert refused["error"] == "There is no POST here. Use GET; /api/ lists all operations."


def test_a_page_of_a_state_reads_that_page_only(caller, talk):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO events_currentstate (room_id, type, state_key, event_id) "
            "SELECT %s, 'm.test', 'key ' || n, '$none ' || n FROM generate_series(1, 5000) n",
            [talk.room_id],
        )
    mine = caller("view_room", "view_event")
    with CaptureQueriesContext(connection) as queries:
        page = mine.get(f"/rooms/{talk.room_id}/state", limit=2, type="m.test")
    assert (page["total"] > 5000, page["next_batch"]) == (True, "2")
    (read,) = [
        query["sql"] for query in queries if "events_currentstate" in query["sql"] and "ORDER BY" in query["sql"]
    ]
    assert "LIMIT 3" in read


def test_messages_go_both_ways_with_the_same_events(caller, talk):
    mine = caller("view_event")

    def read(way: str) -> list[str]:
        found, page = [], mine.get(f"/rooms/{talk.room_id}/messages", dir=way, limit=4)
        while True:
            found += [event["event_id"] for event in page["chunk"]]
            if page["end"] is None:
                return found
            page = mine.get(f"/rooms/{talk.room_id}/messages", dir=way, limit=4, **{"from": page["end"]})

    assert read("b") == read("f")[::-1]
    assert mine.get(f"/rooms/{talk.room_id}/messages", 400, **{"from": "x"})["errcode"] == "M_INVALID_PARAM"


def test_an_event_is_shown_with_the_state_around_it(caller, talk):
    mine = caller("view_event")
    event_id = mine.get(f"/rooms/{talk.room_id}/messages", limit=1)["chunk"][0]["event_id"]
    found = mine.get(f"/events/{event_id}")
    assert found["event"]["content"] == {"body": "message 4"}
    assert (found["outlier"], found["rejected_reason"]) == (False, None)
    around, stored = mine.get(f"/events/{event_id}/state"), state_at(event_id)
    assert {(one["type"], one["state_key"]): one["event_id"] for one in around["after"]} == stored.after
    assert mine.get("/events/$none", 404)["errcode"] == "M_NOT_FOUND"
    assert mine.get("/events/$none/state", 404)["errcode"] == "M_NOT_FOUND"


def test_what_a_user_sees_is_what_the_functions_say(caller, talk):
    mine = caller("view_event", "view_room")
    page = mine.get(f"/users/@bob:site/rooms/{talk.room_id}/messages", limit=500)
    assert page["chunk"][0]["content"] == {"body": "message 4"}
    assert mine.get(f"/users/@eve:site/rooms/{talk.room_id}/messages", 403)["errcode"] == "M_FORBIDDEN"
    assert mine.get("/users/@bob:site/rooms")["rooms"] == [talk.room_id]
    assert mine.get("/users/@eve:site/rooms")["rooms"] == []
    newest = page["chunk"][0]["event_id"]
    found = mine.get("/users/@eve:site/visibility", event_id=[newest, "$none"])["events"]
    assert [(one["seen"], one["error"]) for one in found] == [(False, None), (None, "unknown")]


def test_a_sync_is_full_then_new(caller, talk):
    mine = caller("view_event")
    first = mine.get("/users/@bob:site/sync")
    assert first["full"]
    assert talk.room_id in first["rooms"]["join"]
    talk.send("@ann:site", "m.room.message", {"body": "news"})
    second = mine.get("/users/@bob:site/sync", since=first["next_batch"], timeout=30_000)
    (joined,) = second["rooms"]["join"].values()
    assert [event["content"] for event in joined["timeline"]["events"]] == [{"body": "news"}]
    third = mine.get("/users/@bob:site/sync", since=second["next_batch"])
    assert third["rooms"] == {"join": {}, "leave": {}, "invite": {}, "knock": {}}
    mine.get("/users/@bob:site/sync", 400, since="no token")


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_a_job_is_queued_run_and_shown(caller):
    mine = caller("queue_job", "view_job")
    job = mine.post("/jobs", {"kind": "check streams"}, 202)
    assert (job["state"], job["asked_by"]) == ("queued", "ann")
    call_command("runjobs", "--once")
    assert mine.get(f"/jobs/{job['job']}")["state"] == "done"
    assert [one["job"] for one in mine.get("/jobs")["jobs"]] == [job["job"]]
    (entry,) = LogEntry.objects.all()
    assert "check streams" in entry.change_message
    assert "a script" in entry.change_message
    assert entry.user.username == "ann"


def test_what_changes_something_needs_a_further_permission(caller, talk):
    asked = {"before_time": "2020-01-01"}
    path = f"/rooms/{talk.room_id}/purge_history"
    caller("queue_job").post(path, asked, 403)
    assert not Job.objects.exists()
    assert caller("queue_job").post(path, {**asked, "dry_run": True}, 202)["arguments"]["dry_run"] is True
    job = caller("queue_job", "carry_out_job").post(path, asked, 202)
    assert (job["kind"], job["arguments"]["room"]) == ("purge history", talk.room_id)
    listed = caller("view_job").get(f"/rooms/{talk.room_id}/jobs")["jobs"]
    assert [one["arguments"]["dry_run"] for one in listed] == [False, True]
    assert LogEntry.objects.count() == 2


def test_a_spark_master_needs_a_further_permission(caller):
    caller("queue_job").post(
        "/jobs", {"kind": "resync", "arguments": {"what": "state", "dry_run": True, "master": "local[1]"}}, 403
    )


def test_a_dry_run_is_carried_out_once(caller, talk):
    mine = caller("queue_job", "carry_out_job")
    newest = caller("view_event").get(f"/rooms/{talk.room_id}/messages", limit=1)["chunk"][0]["event_id"]
    mine = caller("queue_job", "carry_out_job", "view_job")
    dry = mine.post(
        f"/rooms/{talk.room_id}/purge_history", {"before": newest, "delete_local": True, "dry_run": True}, 202
    )
    assert mine.post(f"/jobs/{dry['job']}/carry_out", status=409)["errcode"] == "M_UNKNOWN"
    call_command("runjobs", "--once")
    job = mine.post(f"/jobs/{dry['job']}/carry_out", status=202)
    assert job["arguments"] == {**dry["arguments"], "dry_run": False}
    mine.post(f"/jobs/{dry['job']}/carry_out", status=409)
    call_command("runjobs", "--once")
    done = mine.get(f"/jobs/{job['job']}")
    assert (done["state"], done["summary"]["deleted"]) == ("done", 4)


def test_a_room_is_purged_whole(caller, talk):
    mine = caller("queue_job", "carry_out_job", "view_job", "view_room")
    mine.post(f"/rooms/{talk.room_id}/purge", {"force": True}, 202)
    call_command("runjobs", "--once")
    mine.get(f"/rooms/{talk.room_id}", 404)
    (job,) = mine.get(f"/rooms/{talk.room_id}/jobs")["jobs"]
    assert job["state"] == "done"


def test_a_waiting_job_is_cancelled(caller):
    mine = caller("queue_job", "cancel_job")
    job = mine.post("/jobs", {"kind": "check streams"}, 202)["job"]
    assert mine.post(f"/jobs/{job}/cancel")["state"] == "cancelled"
    assert Job.objects.get().state == JobState.CANCELLED
    mine.post(f"/jobs/{job}/cancel", status=409)
    mine.post("/jobs/999/cancel", status=404)
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "no such kind"},
        {"kind": "check streams", "arguments": {"x": 1}},
        {"kind": "purge history", "arguments": {"room": "!none:site"}},
        {"kind": "check streams", "argument": {}},
        {"arguments": {}},
        [],
    ],
)
def test_an_unusable_job_is_refused_with_the_reason(caller, body):
    answer = caller("queue_job", "carry_out_job").post("/jobs", body, 400)
    assert answer["errcode"] == "M_INVALID_PARAM"
    assert len(answer["error"]) > 10
    assert not Job.objects.exists()


def test_what_is_no_json_is_refused(caller):
    client = caller("queue_job")._client
    for text in (b"{", b"\xff", b"[" * 100_000, b""):
        answer = client.post(f"{API}/jobs", text, content_type="application/json")
        assert answer.status_code == 400, text[:10]


# --- streams ----------------------------------------------------------------------------------------------------------


def test_streams_writers_and_readers_are_those_of_the_live_page(caller):
    (fact,) = append()
    wait_for_linear(fact)
    rights = {
        "certificate": "w",
        "names": ["w"],
        "streams": ["*"],
        "reports": [],
        "refused": 1,
        "refusal": "it may not",
    }
    place = {"caches": {"master": fact - 1}}
    Reader.objects.create(key="k", name=HOSTILE, kind="follower", positions=place, rights=rights)
    mine = caller()
    caches = next(one for one in mine.get("/streams") if one["stream"] == "caches")
    (writer,) = mine.get("/writers", name="master")
    assert (caches["writers"], writer["position"]) == ([writer], fact)
    (reader,) = [one for one in mine.get("/readers") if one["key"] == "k"]
    assert reader["name"].isprintable()
    assert [(one["stream"], one["lag_facts"]) for one in reader["streams"]] == [("caches", 1)]
    assert reader["rights"] == rights
    assert mine.get("/health")["health"] in ("well", "look", "wrong")


def test_what_holds_a_stream_back_is_told_and_ended(caller, monkeypatch):
    monkeypatch.setattr(end, "YOUNG_SECONDS", 0.0)
    wait_for_linear(append()[0])
    mine = caller("end_holder")
    with held_open():
        SHARED.__init__()
        caches = next(one for one in mine.get("/streams") if one["stream"] == "caches")
        (holder,), (writer,) = caches["holders"], caches["writers"]
        assert (holder["bound"], holder["state"]) == (caches["linear_position"], "idle in transaction")
        assert f"database session {holder['pid']}" in writer["held_by"]
        assert "1 transaction ended" in mine.post("/streams/caches/abort")["result"]
    (entry,) = LogEntry.objects.all()
    assert "a script" in entry.change_message
    assert entry.object_id == str(StreamPosition.objects.get(stream="caches").pk)
    assert "Nothing holds caches back" in mine.post("/streams/caches/abort", status=409)["error"]
    mine.post("/streams/nothing/abort", status=404)


def test_a_follower_cannot_be_disconnected_and_is_forgotten(caller):
    Reader.objects.create(key="k", name="a follower", kind="follower")
    assert "Only a connection" in caller("disconnect_reader").post("/readers/k/disconnect", status=409)["error"]
    caller("forget_reader").post("/readers/nobody/forget", status=404)


@pytest.fixture
def mail(transactional_db):
    """A reader whose process has ended, with a cursor behind the stream and three dead letters."""
    tokens = append(9)
    wait_for_linear(tokens[-1])
    now = timezone.now()
    StoredCursor.objects.create(reader="mail", stream="caches", base=tokens[0], ended_at=now, seen_at=now)
    for stream, token in (("caches", 7), ("caches", 8), ("events", 2)):
        ParkedFact.objects.create(
            reader="mail", stream=stream, token=token, rows=[], attempts=5, instance_name="master", error=HOSTILE,
            traceback=f"Traceback:\n  {HOSTILE}",
        )  # fmt: skip
    return tokens


def test_a_reader_is_resynced(caller, mail):
    done = caller("resync_reader").post("/readers/mail/resync")["result"]
    assert f"caches {mail[0]} -> {mail[-1]}" in done
    assert StoredCursor.objects.get().base == mail[-1]
    assert "a script" in LogEntry.objects.get().change_message
    caller("resync_reader").post("/readers/nobody/resync", status=404)


def test_a_reader_is_replayed_after_a_preview(caller, mail):
    StoredCursor.objects.update(base=mail[-1])
    mine = caller("resync_reader")
    said = mine.get("/readers/mail/replay", since="1h")["sentences"]
    assert f"9 facts, from {mail[0]}, inserted" in said[0]
    assert StoredCursor.objects.get().base == mail[-1]
    assert not LogEntry.objects.exists()
    mine.post("/readers/mail/replay?since=1h")
    assert StoredCursor.objects.get().base == mail[0] - 1
    assert "9 facts" in LogEntry.objects.get().change_message
    assert "in the future" in mine.post("/readers/mail/replay?since=2999-01-01", status=409)["error"]
    mine.post("/readers/mail/replay", status=409)
    mine.post("/readers/mail/replay?since=yesterday%00", status=409)
    mine.post(f"/readers/mail/replay?token={mail[3]}")
    assert StoredCursor.objects.get().base == mail[3]


def test_dead_letters_are_listed_in_pages_and_dropped(caller, mail):
    mine = caller("view_parkedfact", "drop_parked")
    first = mine.get("/readers/mail/parked", limit=2)
    rest = mine.get("/readers/mail/parked", limit=2, **{"from": first["next_batch"]})
    places = [(one["stream"], one["token"]) for one in (*first["parked"], *rest["parked"])]
    assert places == [("caches", 7), ("caches", 8), ("events", 2)]
    assert rest["next_batch"] is None
    (one, _) = first["parked"]
    assert (one["writer"], one["attempts"]) == ("master", 5)
    assert one["error"].isprintable() and "\n" in one["traceback"] and "\u202e" not in one["traceback"]
    assert [one["token"] for one in mine.get("/readers/mail/parked", stream="events")["parked"]] == [2]
    assert "1 dead letter of mail dropped" in mine.post("/readers/mail/parked/drop?stream=caches&token=7")["result"]
    assert "1 dead letter of mail dropped" in mine.post("/readers/mail/parked/drop?stream=events")["result"]
    assert "1 dead letter of mail dropped" in mine.post("/readers/mail/parked/drop")["result"]
    assert mine.get("/readers/mail/parked") == {"parked": [], "next_batch": None}
    assert LogEntry.objects.filter(change_message__contains="a script").count() == 3
    mine.post("/readers/mail/parked/drop", status=404)
    mine.get("/readers/nobody/parked", 404)
    mine.get("/readers/mail/parked", 400, **{"from": "nowhere"})


def test_dead_letters_that_are_not_there_are_not_retried(caller, mail):
    mine = caller("retry_parked")
    mine.post("/readers/nobody/parked/retry", status=404)
    mine.post("/readers/mail/parked/retry?token=99", status=404)
    assert ParkedFact.objects.count() == 3


def test_the_session_that_an_append_waits_for_is_ended(caller, monkeypatch):
    monkeypatch.setattr(end, "YOUNG_SECONDS", 0.0)
    mine, address = caller("end_holder"), "/streams/caches/end-blocker"
    assert "waits for a lock of another session" in mine.post(address, status=409)["error"]
    with writer_waits_for("another program") as written:
        assert "1 session ended" in mine.post(address)["result"]
    assert written
    assert "1 session ended" in LogEntry.objects.get().change_message
    mine.post("/streams/nothing/end-blocker", status=404)


def test_a_failed_job_is_resumed_and_no_other(caller):
    mine = caller("queue_job", "carry_out_job")
    job = mine.post("/jobs", {"kind": "check streams"}, 202)["job"]
    assert "can be resumed" in mine.post(f"/jobs/{job}/resume", status=409)["error"]
    Job.objects.update(state=JobState.FAILED, error="no space", finished_at=timezone.now())
    answer = mine.post(f"/jobs/{job}/resume", status=202)
    assert (answer["state"], answer["error"]) == ("queued", "")
    assert LogEntry.objects.filter(change_message__startswith="Resumed: check streams (API token ").count() == 1
    mine.post("/jobs/999/resume", status=404)
    call_command("runjobs", "--once")
    assert Job.objects.get().state == JobState.DONE


@pytest.mark.parametrize("withdrawn", ["token", "permission"])
def test_a_sync_that_waits_ends_without_news_when_its_right_is_withdrawn(caller, talk, withdrawn):
    mine = caller("view_event")
    since = mine.get("/users/@bob:site/sync")["next_batch"]
    waited: list[int] = []

    def wait() -> None:
        answer = mine._client.get(f"{API}/users/@bob:site/sync", {"since": since, "timeout": 20_000})
        waited.append(answer.status_code)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: notifier.waiting() == 1)
    if withdrawn == "token":
        ApiToken.objects.update(revoked_at=timezone.now())
    else:
        User.objects.get(username="ann").user_permissions.clear()
    talk.add([NewEvent("@ann:site", "m.room.message", {"body": "secret"})])
    thread.join(DEADLINE_SECONDS)
    assert waited == [401 if withdrawn == "token" else 403]


def test_syncs_of_one_user_leave_places_to_those_of_others(caller, talk, monkeypatch):
    """A hundred waiting syncs of one token had all places: those of others got 503 after ten seconds."""
    monkeypatch.setattr("replsite.api.client_sync.MOST_WAITING", 1)
    mine, address = caller("view_event"), "/users/@bob:site/sync"
    others = Caller(make_token(User.objects.create_superuser("ben"), "another script")[1])
    waiting = {"since": mine.get(address)["next_batch"], "timeout": 20_000}
    thread = threading.Thread(target=mine.get, args=(address,), kwargs=waiting)
    thread.start()
    wait_until(lambda: notifier.waiting() == 1)
    assert mine.get(address, 429, **waiting)["errcode"] == "M_LIMIT_EXCEEDED"
    assert mine.get(address)["next_batch"] == waiting["since"], "one that does not wait"
    other = threading.Thread(target=others.get, args=(address,), kwargs=waiting)
    other.start()
    wait_until(lambda: notifier.waiting() == 2)
    talk.add([NewEvent("@ann:site", "m.room.message", {"body": "news"})])
    for one in (thread, other):
        one.join(DEADLINE_SECONDS)
    assert mine.get(address, **waiting)["rooms"]["join"], "its turn is over"


# --- alike ------------------------------------------------------------------------------------------------------------


def test_every_operation_says_which_permission_it_needs():
    """Of operations without one, any staff user may know the answer: the live page shows it to all of them."""
    free = {
        "/api/v1/token",
        "/api/v1/health",
        "/api/v1/streams",
        "/api/v1/writers",
        "/api/v1/readers",
        "/api/v1/jobs/kinds",
    }
    for path, operations in api.get_openapi_schema()["paths"].items():
        for method, operation in operations.items():
            assert ("Permission" in operation["description"]) != (path in free), (method, path)
            assert operation["security"], path


def test_while_the_database_is_away_the_answer_is_503(caller, monkeypatch):
    def away(*_args, **_options):
        raise OperationalError("server closed the connection")

    mine = caller()
    monkeypatch.setattr("replsite.api.streams.SHARED.get", away)
    answer = mine._client.get(f"{API}/streams")
    assert answer.status_code == 503
    assert answer.json()["error"] == "The database cannot be read."
    assert int(answer["Retry-After"]) > 0


def test_while_an_action_cannot_connect_the_answer_is_503(caller, monkeypatch):
    append(1)

    def away(*_args, **_options):
        raise driver.connection_lost[0]("too many clients already")

    mine = caller("end_holder")
    monkeypatch.setattr("replsite.operator_actions.driver.direct_connection", away)
    mine.post("/streams/caches/abort", status=503)


def test_a_body_that_is_too_large_is_refused_as_json(caller):
    body = {"kind": "check streams", "arguments": {"x": "a" * 3_000_000}}
    assert caller("queue_job").post("/jobs", body, 413)["errcode"] == "M_TOO_LARGE"


def test_half_a_pair_in_a_folder_is_refused(caller, talk):
    mine, path = caller("queue_job", "carry_out_job"), f"/rooms/{talk.room_id}/purge"
    assert "must be a name" in mine.post(path, {"archive": "\ud800", "force": True}, 400)["error"]


def test_calls_that_wait_take_turns_in_each_event_loop():
    """A WSGI server makes a loop for each request: the turns of one must not be those of another."""
    errors: list[BaseException] = []

    def loop() -> None:
        async def many() -> None:
            await asyncio.gather(*(access.in_turn(lambda: time.sleep(0.01)) for _ in range(20)))

        try:
            asyncio.run(many())
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=loop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_call_whose_client_left_keeps_its_turn_while_its_thread_works():
    may_end, working, most, lock = threading.Event(), 0, 0, threading.Lock()

    def work() -> None:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        may_end.wait(DEADLINE_SECONDS)
        with lock:
            working -= 1

    async def one() -> None:
        async with ThreadSensitiveContext():
            await access.in_turn(work)

    async def many() -> None:
        for _ in range(3):
            calls = [asyncio.create_task(one()) for _ in range(8)]
            await asyncio.wait(calls, timeout=0.3)
            for call in calls:
                call.cancel()
        await wait_for(lambda: working >= 8)
        await asyncio.sleep(0.2)  # an absence: a ninth would begin in that time
        may_end.set()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(many())
    assert most == 8
