"""The WebSocket of the live page: who may look, what is sent, and what it costs."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import zlib

import pytest
from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.contrib.sessions.models import Session
from django.db import OperationalError, connections
from django.test import Client

from replsite.asgi import application
from replsite.dashboard import consumer, fragments, tick_feed
from replsite.dashboard.consumer import LiveConsumer
from replsite.dashboard.tick_feed import LiveFeed
from tests.support.snapshots import a_snapshot, a_stream, a_writer
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.writing import append, linear

STAFF = User(username="staff", is_staff=True, is_superuser=True)
SEES_ALL = frozenset(fragments._RIGHTS)


TICK_SECONDS = 0.02


class Source:
    """Snapshots that move on with every look, counted."""

    def __init__(self):
        self.looks = 0
        self.error = None

    def __call__(self):
        self.looks += 1
        if self.error:
            raise self.error
        return a_snapshot(a_stream(a_writer(position=self.looks), a_writer("quiet")))


@pytest.fixture
def source(monkeypatch, db):
    """The feed of this test's loop, ticking fast."""
    source = Source()
    found = []

    def of_this_loop():
        found.extend([] if found else [LiveFeed(source, tick_seconds=TICK_SECONDS)])
        return found[0]

    monkeypatch.setattr(consumer, "feed_of_this_loop", of_this_loop)
    return source


class Viewer(WebsocketCommunicator):
    """With the deadline of tests in the place of one second."""

    async def connect(self, timeout=DEADLINE_SECONDS):  # noqa: ASYNC109 - as the class has it
        return await super().connect(timeout)

    async def receive_from(self, timeout=DEADLINE_SECONDS):  # noqa: ASYNC109
        return await super().receive_from(timeout)

    async def receive_output(self, timeout=DEADLINE_SECONDS):  # noqa: ASYNC109
        return await super().receive_output(timeout)

    async def disconnect(self, code=1000, timeout=DEADLINE_SECONDS):  # noqa: ASYNC109
        await super().disconnect(code, timeout)


def viewer(user=STAFF):
    communicator = Viewer(LiveConsumer.as_asgi(), "/ws/live/")
    communicator.scope["user"] = user
    return communicator


async def answer_of(ws):
    return unpacked(await ws.receive_from())


def unpacked(message):
    return json.loads(zlib.decompress(message))


def shown(table):
    """{group: {row: what is sent of it}} of a table in an answer."""
    return {key: dict(rows) for key, rows in table if rows is not None}


def is_whole(table):
    return all(isinstance(row, str) for rows in shown(table).values() for row in rows.values())


async def connected():
    communicator = viewer()
    assert (await communicator.connect())[0]
    return communicator


@pytest.mark.parametrize(
    ("user", "code"),
    [
        (None, 4401),
        (AnonymousUser(), 4401),
        (User(username="u"), 4403),
        (User(username="s", is_staff=True, is_active=False), 4403),
    ],
)
async def test_others_are_refused_before_anything_is_sent(source, user, code):
    assert await viewer(user).connect() == (False, code)
    assert source.looks == 0


async def test_first_answer_is_everything_and_the_next_only_what_changed(source):
    ws = await connected()
    await ws.send_json_to({"have": 0})
    first = await answer_of(ws)
    await ws.send_json_to({"have": first["number"]})
    second = await answer_of(ws)
    await ws.disconnect()
    assert [key for key, _ in first["streams"]] == ["events"]
    assert all(row.startswith("<tr ") for row in shown(first["streams"])["events"].values())
    assert shown(second["streams"])["events"].pop("quiet") is None
    assert shown(second["streams"])["events"]["master"] == {"2": first_cell_of("Position", source.looks)}
    assert "state" not in second
    assert second["number"] > first["number"]


def first_cell_of(title, number):
    return f'<td class="live-number" data-label="{title}"><span class="live-text">{number}</span></td>'


async def test_nothing_is_sent_or_read_unasked(source):
    ws = await connected()
    assert await ws.receive_nothing(0.1)
    await ws.send_json_to({"have": 0})
    await answer_of(ws)
    assert await ws.receive_nothing(0.2)
    looks = source.looks
    assert await ws.receive_nothing(0.2)
    await ws.disconnect()
    assert source.looks == looks <= 3


async def test_a_viewer_that_comes_back_gets_everything_and_no_old_page(source):
    ws = await connected()
    await ws.send_json_to({"have": 0})
    first = await answer_of(ws)
    await asyncio.sleep(0.2)  # ten ticks: the feed has come to rest, and its page is old
    looks = source.looks
    await ws.send_json_to({"have": 0})
    again = await answer_of(ws)
    await ws.disconnect()
    assert again["number"] > first["number"]
    assert source.looks > looks
    assert is_whole(again["streams"])


async def test_many_viewers_share_one_look_per_tick(source):
    viewers = [await connected() for _ in range(20)]
    begun = time.monotonic()
    for ws in viewers:
        await ws.send_json_to({"have": 0})
    numbers = {(await answer_of(ws))["number"] for ws in viewers}
    for ws in viewers:
        await ws.disconnect()
    ticks = (time.monotonic() - begun) / TICK_SECONDS
    assert len(numbers) <= ticks + 2
    assert source.looks <= ticks + 3


async def test_database_away_is_said_and_then_everything_comes_again(source):
    source.error = OperationalError("gone")
    ws = await connected()
    await ws.send_json_to({"have": 0})
    assert (await answer_of(ws))["error"] == "The database cannot be read."
    source.error = None
    await ws.send_json_to({"have": 0})
    answer = await answer_of(ws)
    await ws.disconnect()
    assert is_whole(answer["streams"])


@pytest.mark.parametrize(
    "said",
    [
        "x",
        "[]",
        "{}",
        '{"have": "1"}',
        '{"have": -1}',
        '{"have": true}',
        "[" * 150,
        '{"have": 1}' + " " * 200,
        b'{"have": 0}',
    ],
)
async def test_what_is_not_a_question_closes(source, said):
    ws = await connected()
    await ws.send_to(**{"bytes_data" if isinstance(said, bytes) else "text_data": said})
    assert (await ws.receive_output())["code"] == 4400


async def test_a_flood_closes(source):
    ws = await connected()
    for _ in range(consumer.MOST_MESSAGES_PER_SECOND + 1):
        await ws.send_json_to({"have": 0})
    codes = []
    while not codes:
        message = await ws.receive_output()
        codes += [message["code"]] if message["type"] == "websocket.close" else []
    assert codes == [4429]


async def test_the_feed_rests_when_nobody_waits():
    source = Source()
    live = LiveFeed(source, tick_seconds=0.01)
    await live.after(0)
    await asyncio.wait_for(live._task, DEADLINE_SECONDS)
    looks = source.looks
    await asyncio.sleep(0.1)  # ten ticks: an absence cannot be waited for otherwise
    assert source.looks == looks


async def test_a_viewer_that_goes_while_it_is_answered_leaves_no_error_behind(source):
    """A server refuses to send to whoever has gone, with an exception of its own."""
    noticed = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noticed.append(context["message"]))

    async def refuse(message):
        if message["type"] != "websocket.accept":
            raise RuntimeError("Attempt to send on a closed protocol")

    live = LiveConsumer()
    live.scope, live.base_send = {"user": STAFF}, refuse
    await live.connect()
    await live.receive('{"have": 0}')
    answer = live._answer
    await asyncio.wait([answer])
    await live.disconnect(1006)
    del live, answer
    gc.collect()
    await asyncio.sleep(0)
    assert noticed == []


async def test_nobody_waits_for_a_page_after_the_end(source):
    ws = await connected()
    await ws.send_json_to({"have": 0})
    await ws.disconnect()
    assert not [task for task in asyncio.all_tasks() if "_give_answer" in repr(task)]


# --- the whole ASGI stack ---------------------------------------------------------------------------------------------


def session_headers(user, origin=b"http://localhost"):
    client = Client()
    client.force_login(user)
    cookie = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
    return [(b"origin", origin), (b"cookie", cookie.encode())]


@database_sync_to_async
def headers_of(name, staff, origin=b"http://localhost"):
    return session_headers(User.objects.create_user(name, is_staff=staff), origin)


async def handshake(headers):
    communicator = Viewer(application, "/ws/live/", headers=headers)
    accepted, code = await communicator.connect()
    return communicator, accepted, code


@pytest.fixture
async def committed(transactional_db):
    """Other threads see the rows; their connections are closed, so that the test database can be dropped."""
    yield
    await database_sync_to_async(connections.close_all)()


async def test_staff_session_sees_the_real_page(committed):
    await database_sync_to_async(append)()
    ws, accepted, _ = await handshake(await headers_of("boss", True))
    assert accepted
    await ws.send_json_to({"have": 0})
    answer = await answer_of(ws)
    await ws.disconnect()
    await asyncio.wait_for(tick_feed.feed_of_this_loop()._task, DEADLINE_SECONDS)
    assert "caches" in {key for key, _ in answer["streams"]}


async def test_ordinary_session_is_refused(committed):
    _, accepted, code = await handshake(await headers_of("user", False))
    assert (accepted, code) == (False, 4403)


async def test_anonymous_is_refused(committed):
    assert (await handshake([(b"origin", b"http://localhost")]))[1:] == (False, 4401)


async def test_foreign_origin_is_refused_even_for_staff(committed):
    assert not (await handshake(await headers_of("boss", True, b"http://evil.example")))[1]


async def test_another_port_of_the_same_host_is_refused_even_for_staff(committed):
    """Cookies know no ports."""
    headers = await headers_of("boss", True, b"http://localhost:8001")
    assert not (await handshake([*headers, (b"host", b"localhost:8000")]))[1]


async def test_losing_the_staff_mark_shuts_out(committed, monkeypatch):
    monkeypatch.setattr(consumer, "RECHECK_SECONDS", 0.0)
    ws, accepted, _ = await handshake(await headers_of("boss", True))
    assert accepted
    await database_sync_to_async(User.objects.update)(is_staff=False)
    await ws.send_json_to({"have": 0})
    assert (await ws.receive_output())["code"] == 4403


async def test_other_rights_take_effect_on_a_page_that_is_open(committed, monkeypatch):
    """What is on its screen was rendered for its former rights, so it gets everything."""
    monkeypatch.setattr(consumer, "RECHECK_SECONDS", 0.0)
    await database_sync_to_async(append)()
    await database_sync_to_async(linear)()
    ws, accepted, _ = await handshake(await headers_of("mate", True))
    assert accepted
    await ws.send_json_to({"have": 0})
    first = await answer_of(ws)
    assert first["rooms"] == [] and "/admin/streams/" not in json.dumps(first)
    await ws.send_json_to({"have": first["number"]})
    second = await answer_of(ws)
    assert not is_whole(second.get("streams", [["", [["", None]]]]))
    await database_sync_to_async(permit)("mate", "view_streamposition", "view_room")
    await ws.send_json_to({"have": second["number"]})
    third = await answer_of(ws)
    await ws.disconnect()
    await asyncio.wait_for(tick_feed.feed_of_this_loop()._task, DEADLINE_SECONDS)
    assert is_whole(third["streams"])
    assert {"state", "summary", "rooms", "workers"} <= third.keys()
    assert "/admin/streams/streamposition/" in json.dumps(third["streams"])


def permit(name, *codenames):
    User.objects.get(username=name).user_permissions.add(*Permission.objects.filter(codename__in=codenames))


async def test_logging_out_shuts_out(committed, monkeypatch):
    """In another tab: this connection has read the session when it began."""
    monkeypatch.setattr(consumer, "RECHECK_SECONDS", 0.0)
    ws, accepted, _ = await handshake(await headers_of("boss", True))
    assert accepted
    await database_sync_to_async(Session.objects.all().delete)()
    await ws.send_json_to({"have": 0})
    assert (await ws.receive_output())["code"] == 4401


async def test_a_page_that_cannot_be_made_is_said_and_logged_instead_of_waited_for(source, caplog):
    source.error = ValueError("a defect")
    ws = await connected()
    await ws.send_json_to({"have": 0})
    assert "cannot be made" in (await answer_of(ws))["error"]
    source.error = None
    await ws.send_json_to({"have": 0})
    assert is_whole((await answer_of(ws))["streams"])
    await ws.disconnect()
    assert "a defect" in caplog.text


async def test_a_database_that_does_not_answer_is_said_while_it_is_waited_for():
    go_on = threading.Event()

    def look():
        go_on.wait(DEADLINE_SECONDS)
        return a_snapshot()

    live = LiveFeed(look, tick_seconds=0.01, patience_seconds=0.05)
    tick = await live.after(0)
    assert (tick.page, tick.error) == (None, "The database does not answer.")
    go_on.set()
    while (tick := await live.after(tick.number)).page is None:
        pass
    await asyncio.wait_for(live._task, DEADLINE_SECONDS)


async def test_only_the_last_pages_are_kept_and_the_others_come_whole():
    source = Source()
    live = LiveFeed(source, tick_seconds=0.001)
    number, texts = 0, []
    for _ in range(20):
        tick = await live.after(number)
        texts.append([unpacked(live.message(have, tick, SEES_ALL)) for have in (number, max(0, number - 1), 1)])
        number = tick.number
    await asyncio.wait_for(live._task, DEADLINE_SECONDS)
    last, before, first = texts[-1]
    assert not is_whole(last["streams"]) and not is_whole(before["streams"])
    assert is_whole(first["streams"]), "page 1 is long gone"
    assert len(live._kept) == tick_feed.TICKS_KEPT
    assert len(live._messages) <= 3


async def test_what_viewers_of_one_page_are_sent_is_written_once(monkeypatch):
    live = LiveFeed(Source(), tick_seconds=0.001)
    tick = await live.after(0)
    assert live.message(0, tick, SEES_ALL) is live.message(0, tick, SEES_ALL)
    assert live.message(0, tick, SEES_ALL) is not live.message(0, tick, frozenset())
    assert tick.fragments(SEES_ALL) is tick.fragments(SEES_ALL)
    await asyncio.wait_for(live._task, DEADLINE_SECONDS)


async def test_a_feed_that_is_cancelled_does_not_hold_up_the_loop_for_a_read(db):
    """The server stops while the database does not answer. The loop stood still until the answer came."""
    reading, answered = threading.Event(), threading.Event()

    def hang():
        reading.set()
        answered.wait(DEADLINE_SECONDS)
        return a_snapshot()

    feed = LiveFeed(hang)
    viewer = asyncio.create_task(feed.after(0))
    await asyncio.to_thread(reading.wait, 20)
    feed._task.cancel()
    late = threading.Timer(10, answered.set)  # so that a loop that stands still fails the test, and does not hang it
    late.start()
    await asyncio.wait([feed._task])
    assert not answered.is_set()
    viewer.cancel()
    late.cancel()
    answered.set()
