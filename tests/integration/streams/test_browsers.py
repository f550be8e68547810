"""``stream_view`` and ``stream_consumer``: every fact once, in order, from any token on, for those who may, within bounds."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import BaseHandler
from django.db import connection, connections
from django.middleware.csrf import CsrfViewMiddleware
from django.test import AsyncRequestFactory, RequestFactory, override_settings

from streams import epochs, stream_consumer, stream_view
from streams.browsers import clients
from streams.browsers.clients import Message
from streams.browsers.view import event_of
from streams.maintenance.trim import Keep, TrimRequest, trim
from tests.support.async_waiting import close_connections_of_threads, listeners_that_wait, wait_for
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, cut, fact, session, sessions, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module", autouse=True)
def _threads():
    yield
    close_connections_of_threads()


@pytest.fixture(autouse=True)
def _counts():
    clients.counts.clear()
    yield
    wait_until(none_is_open)


def none_is_open() -> bool:
    """True once the last reference to each client is gone. The thread that read for it may have one for a moment."""
    if clients.open_clients():
        gc.collect()
    return clients.open_clients() == 0


def view(**options: Any) -> Any:
    given = {"allow": lambda request: True, "render": lambda one: {"n": one.stream_id}, "beat": 0.1}
    return stream_view(stream(), **given | options)


async def ask(of: Any, query: str = "", **headers: str) -> Any:
    return await of(AsyncRequestFactory().get(f"/orders/{query}", headers=headers))


@asynccontextmanager
async def opened(of: Any, query: str = "", **headers: str) -> AsyncIterator[Any]:
    """The blocks of an answer, as dicts, after the first two, which say how to go on."""
    response = await ask(of, query, **headers)
    assert (response.status_code, response["Content-Type"]) == (200, "text/event-stream"), response
    async with aclosing(aiter(response)) as answer:
        yield blocks(answer)
    response.close()


async def blocks(answer: AsyncIterator[bytes]) -> AsyncIterator[dict[str, str]]:
    async for part in answer:
        for block in part.decode().removesuffix("\n\n").split("\n\n"):
            yield dict(line.split(": ", 1) for line in block.split("\n"))


async def take(of: AsyncIterator[dict[str, str]], count: int) -> list[dict[str, str]]:
    """The next blocks that are no beats."""
    found: list[dict[str, str]] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            block = await anext(of)
            if "data" in block and block.get("event") != "beat":
                found.append(block)
    return found


async def rest(of: AsyncIterator[dict[str, str]]) -> list[dict[str, str]]:
    """The facts of an answer that ends."""
    async with asyncio.timeout(20):
        return [block async for block in of if "data" in block and "event" not in block]


def numbers(found: list[dict[str, str]]) -> list[int]:
    return [json.loads(block["data"])["n"] for block in found]


aappend = sync_to_async(append)


# --- declaration ------------------------------------------------------------------------------------------------------


def test_a_view_without_a_permission_is_refused():
    with pytest.raises(TypeError, match="allow"):
        stream_view(stream(), render=str)
    with pytest.raises(TypeError, match="takes the request"):
        stream_view(stream(), allow=None, render=str)
    with pytest.raises(TypeError, match="no names"):
        stream_view(stream(), allow=bool)
    with pytest.raises(ValueError, match="beat=0"):
        view(beat=0)


async def test_under_wsgi_the_view_says_what_to_do():
    with pytest.raises(ImproperlyConfigured, match="Serve the project by ASGI"):
        await view()(RequestFactory().get("/"))


async def test_only_get_and_only_who_may():
    post = AsyncRequestFactory().post("/")
    assert CsrfViewMiddleware(view()).process_view(post, view(), (), {}) is None
    assert (await view()(post)).status_code == 405

    async def nobody(request):
        return False

    for allow in (nobody, lambda request: False, lambda request: asyncio.sleep(0, False)):
        assert (await ask(view(allow=allow))).status_code == 403
    assert clients.counts["opened"] == 0


def test_the_view_needs_no_channels():
    script = """
import sys
sys.modules["channels"] = None
from django.conf import settings
settings.configure(INSTALLED_APPS=["streams"])
import django; django.setup()
from streams import stream_view
print(stream_view.__name__, [name for name in sys.modules if name.startswith("streams.browsers.c")])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=2 * DEADLINE_SECONDS
    )
    assert done.stdout == "stream_view ['streams.browsers.clients']\n"


# --- facts ------------------------------------------------------------------------------------------------------------


async def test_facts_come_with_their_tokens_from_now_on():
    await aappend()
    async with opened(view()) as answer:
        assert await anext(answer) == {"retry": "1000"}
        (ready,) = await take(answer, 1)
        assert ready["event"] == "ready"
        expected = await aappend(3)
        found = await take(answer, 3)
    assert numbers(found) == expected
    assert [block["id"] for block in found] == [one.token for one in (await stream().aread(ready["id"])).facts]


@pytest.mark.parametrize("how", ["header", "query", "both"])
async def test_a_browser_goes_on_after_its_token(how):
    expected = await aappend(5)
    page = await stream().aread(limit=2)
    query = {"header": "", "query": f"?after={page.next}", "both": "?after=0"}[how]
    headers = {} if how == "query" else {"Last-Event-ID": page.next}
    async with opened(view(), query, **headers) as answer:
        ready, *found = await take(answer, 4)
    assert (ready["id"], numbers(found)) == (page.next, expected[2:])


async def test_every_fact_arrives_once_through_many_short_answers():
    """Each answer ends after a few bytes; the next one begins where it ended."""
    expected, found, last = await aappend(30), [], "0"
    with override_settings(REPLSITE_BROWSER_ANSWER_BYTES=200):
        while len(found) <= 20:  # how many fit into an answer depends on the digits of their IDs
            async with opened(view(), **{"Last-Event-ID": last}) as answer:
                came = await rest(answer)
            last = came[-1]["id"]
            found += numbers(came)
            assert numbers(came) and len(came) < 10
    assert found == expected[: len(found)]
    assert clients.counts["bytes"] > 3


async def test_rows_of_one_fact_have_its_token_at_the_end():
    """Else a browser that lost its connection within the fact would never get the rest."""

    def make():
        with stream().reserve() as reservation:
            rows = [fact(f"row {n}") for n in range(3)]
            for row in rows:
                row.stream_id = reservation.ids[0]
            reservation.write(*rows)

    async with opened(view(render=lambda row: row.cache_name)) as answer:
        await take(answer, 1)
        await sync_to_async(make)()
        found = await take(answer, 3)
    assert [("id" in block, block["data"]) for block in found] == [(False, "row 0"), (False, "row 1"), (True, "row 2")]


async def test_facts_that_are_left_out_move_the_token():
    def only(request, one):
        return one.stream_id == int(request.headers["X-Wanted"])

    _, second, third = await aappend(3)
    async with opened(view(only=only), "?after=0", **{"X-Wanted": str(second)}) as answer:
        assert numbers((await take(answer, 2))[1:]) == [second]
        async with asyncio.timeout(20):
            while (beat := await anext(answer)).get("id") is None:
                pass
    assert beat["event"] == "beat"
    async with opened(view(), **{"Last-Event-ID": beat["id"]}) as answer:
        await take(answer, 1)
        assert numbers([*(await take_after_append(answer))]) == [third + 1]


async def take_after_append(answer):
    await aappend()
    return await take(answer, 1)


async def test_a_fact_is_rendered_once_for_all():
    rendered = []
    shared = view(render=lambda one: rendered.append(one.stream_id) or "x")
    async with opened(shared) as one, opened(shared) as other:
        await take(one, 1)
        await take(other, 1)
        waiting = [asyncio.create_task(take(answer, 1)) for answer in (one, other)]
        await wait_for(lambda: listeners_that_wait() == 2)  # at the same token
        (number,) = await aappend()
        await asyncio.gather(*waiting)
    assert rendered == [number]


def test_text_of_several_lines_stays_one_event():
    text = event_of(Message("message", "one\ntwo\r\nthree\rfour", "7@x"))
    assert text == b"id: 7@x\ndata: one\ndata: two\ndata: three\ndata: four\n\n"


# --- tokens that cannot be continued ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token",
    ["rubbish", "-1", "1.5", "9" * 30, "9" * 5000, "m1~1", "m1~999999.5", "m1~" + "~".join(["1.5"] * 10_001),
     "1@@", "@", " ", "\x00", "1\x00", "\xb2", "1;DROP", "[1]", "1 2"],
)  # fmt: skip
async def test_a_token_that_is_none_is_refused(token):
    answer = await ask(view(), **{"Last-Event-ID": token})
    if answer.status_code == 200:  # "the end of writer 1", or a place of another epoch
        async with aclosing(aiter(answer)) as parts:
            found = await take(blocks(parts), 2)
        answer.close()
        assert found[-1]["event"] == "resync", found
    else:
        assert answer.status_code == 400
        assert b"en" in answer.content, "says what is wrong"
    assert clients.open_clients() == 0


async def test_a_place_that_was_never_reached_waits_and_costs_nothing():
    async with opened(view(), f"?after={2**62}") as answer, asyncio.timeout(20):
        assert (await take(answer, 1))[0]["event"] == "ready"
        await aappend()
        assert (await anext(answer))["event"] == "beat"


async def test_after_a_restore_the_browser_is_told_to_load_anew():
    await aappend()
    before = (await stream().aread()).next
    async with opened(view()) as open_all_along:
        await take(open_all_along, 1)

        def restore():
            with session() as cursor:
                epochs.begin_epoch(cursor, "test")

        await sync_to_async(restore)()
        async with opened(view(), **{"Last-Event-ID": before}) as answer:
            ready, resync = await take(answer, 2)
            assert (resync["event"], json.loads(resync["data"])["reason"]) == ("resync", "restored")
            (number,) = await aappend()
            assert numbers(await take(answer, 1)) == [number]
        (resync,) = await take(open_all_along, 1)
        assert (resync["event"], json.loads(resync["data"])["reason"]) == ("resync", "restored")
        (number,) = await aappend()
        assert numbers(await take(open_all_along, 1)) == [number]
    assert resync["id"].partition("@")[2] != before.partition("@")[2]
    assert ready["id"] != before


async def test_after_a_trim_the_browser_is_told_to_load_anew():
    def lose_some():
        wait_for_linear(append(10)[-1])
        with session() as cursor:
            list(trim(cursor, TrimRequest(stream(), Keep(facts=2), settle_seconds=0.0)))

    await sync_to_async(lose_some)()
    async with opened(view(), "?after=1") as answer:
        _, resync = await take(answer, 2)
        assert (resync["event"], json.loads(resync["data"])["reason"]) == ("resync", "trimmed")
        (number,) = await aappend()
        assert numbers(await take(answer, 1)) == [number]


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_more_browsers_than_allowed_are_sent_away():
    with override_settings(REPLSITE_BROWSER_LIMIT=1):
        async with opened(view()) as answer:
            await take(answer, 1)
            refused = await ask(view())
            assert (refused.status_code, refused["Retry-After"]) == (503, "5")
        async with opened(view()) as answer:
            await take(answer, 1)
    assert clients.counts["full"] == 1


async def test_a_browser_that_leaves_before_its_answer_began_holds_no_place():
    response = await ask(view())
    assert clients.open_clients() == 1
    del response
    await wait_for(none_is_open)


async def test_an_answer_ends_after_its_time():
    with override_settings(REPLSITE_BROWSER_ANSWER_SECONDS=0.3):
        async with opened(view()) as answer, asyncio.timeout(20):
            assert len([block async for block in answer]) > 2
    assert clients.counts["time"] == 1


async def test_a_right_that_was_taken_away_counts_when_the_answer_ends():
    rights = {"orders"}
    of = view(allow=lambda request: "orders" in rights)
    with override_settings(REPLSITE_BROWSER_ANSWER_SECONDS=0.3):
        async with opened(of) as answer:
            await take(answer, 1)
            rights.clear()
            await rest(answer)
    assert (await ask(of)).status_code == 403


async def test_all_end_when_the_process_stops():
    async with opened(view(beat=60)) as answer, asyncio.timeout(20):
        await take(answer, 1)
        waiting = asyncio.create_task(rest(answer))
        await asyncio.sleep(0.1)
        clients.end_all()
        assert await waiting == []
    assert clients.counts["stopped"] == 1


async def test_a_lost_database_costs_no_fact():
    async with opened(view()) as answer:
        await take(answer, 1)
        await sync_to_async(cut)("replsite positions")
        expected = await aappend(2)
        assert numbers(await take(answer, 2)) == expected


def backends() -> int:
    """Connections to the test's database, but for the one that asks."""
    return len(sessions())


async def test_many_browsers_share_two_threads_and_their_connections():
    """Django gives each request a thread, and would keep it, with its connection, until the answer ends."""
    of_requests: set[int] = set()
    of_checks: set[int] = set()

    def query(threads: set[int]) -> bool:
        threads.add(threading.get_ident())
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return True

    of = view(allow=lambda request: query(of_checks))
    may_go, began = asyncio.Event(), []

    async def visit():
        async with ThreadSensitiveContext():
            await sync_to_async(query)(of_requests)  # as middleware would
            async with opened(of) as answer:
                await take(answer, 1)
                began.append(1)
                await may_go.wait()
                return numbers(await take(answer, 1))

    def left():
        return len(began) == 20 and not {one.ident for one in threading.enumerate()} & of_requests

    tasks = [asyncio.create_task(visit()) for _ in range(20)]
    await wait_for(left)
    assert len(of_requests) > 1, "each had a thread of its own"
    assert len(of_checks) == 1
    # The test's own, the readers', the checks', the watcher's, and that of looks for own facts. A server process lives a moment
    # longer than its connection.
    await sync_to_async(wait_until)(lambda: backends() <= 5)
    (number,) = await aappend()
    may_go.set()
    assert await asyncio.gather(*tasks) == [[number]] * 20


async def test_a_slow_permission_delays_no_fact():
    may_end = threading.Event()

    async def visit(of):
        async with ThreadSensitiveContext():
            return await ask(of)

    async with ThreadSensitiveContext(), opened(view()) as answer:
        await take(answer, 1)
        waiting = asyncio.create_task(visit(view(allow=lambda request: may_end.wait(DEADLINE_SECONDS))))
        await wait_for(lambda: clients.open_clients() == 2)
        (number,) = await aappend()
        assert numbers(await take(answer, 1)) == [number]
        assert not waiting.done()
        may_end.set()
        (await waiting).close()


async def test_a_browser_that_does_not_read_is_disconnected():
    """The interface of Django's own handler, with a server that waits for its client, as uvicorn does."""
    sent: list[dict[str, Any]] = []
    never = asyncio.Event()

    request = iter([{"type": "http.request"}])

    async def receive():
        return next(request, None) or await never.wait()

    async def send(message):
        sent.append(message)
        if len(sent) > 4:
            await never.wait()

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"after=0"}
    handler = ASGIHandler()
    handler._middleware_chain = view()
    await aappend(10)
    with override_settings(REPLSITE_SEND_STALL_LIMIT_SECONDS=0.3):
        async with asyncio.timeout(20):
            await handler(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * 4]
    assert (clients.counts["slow"], clients.open_clients()) == (1, 0)


async def test_a_fault_of_render_ends_the_answer_and_is_logged(caplog):
    async with opened(view(render=lambda one: 1 / 0)) as answer, asyncio.timeout(20):
        await take(answer, 1)
        await aappend()
        assert await rest(answer) == []
    assert "browsers.failed" in caplog.text
    assert clients.counts["failed"] == 1


async def test_a_stream_whose_facts_are_all_left_out_beats_and_moves_on():
    """Facts that come faster than the beat keep the listener busy, and a page would take the connection for dead."""
    until = asyncio.Event()

    async def write():
        while not until.is_set():
            await aappend()
            await asyncio.sleep(0.02)

    async with opened(view(only=lambda request, one: False, beat=0.2)) as answer, asyncio.timeout(20):
        (ready,) = await take(answer, 1)
        writing = asyncio.create_task(write())
        tokens = []
        while len(tokens) < 3:
            block = await anext(answer)
            tokens += [block["id"]] if block.get("event") == "beat" and "id" in block else []
        until.set()
        await writing
    assert len({ready["id"], *tokens}) == 4


def test_the_view_is_usable_with_transactions_of_requests():
    """Django refuses an async view with ATOMIC_REQUESTS."""
    with override_database(ATOMIC_REQUESTS=True):
        assert BaseHandler().make_view_atomic(of := view()) is of


@contextmanager
def override_database(**settings: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in settings.items():
            patched.setitem(connection.settings_dict, name, value)
        yield


# --- WebSockets -------------------------------------------------------------------------------------------------------


class Socket:
    """A browser's WebSocket."""

    def __init__(self, query: str = "", origin: str = "http://localhost", **options: Any) -> None:
        given = {"allow": lambda request: True, "render": lambda one: {"n": one.stream_id}, "beat": 0.1}
        application = stream_consumer(stream(), **given | options).as_asgi()
        headers = [(b"origin", origin.encode()), (b"cookie", b"a=b")]
        self.communicator = WebsocketCommunicator(application, f"/ws/orders/{query}", headers=headers)

    async def __aenter__(self) -> Any:
        self.accepted, self.code = await self.communicator.connect(DEADLINE_SECONDS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.communicator.disconnect(timeout=DEADLINE_SECONDS)

    async def take(self, count: int) -> list[dict[str, str]]:
        """The next messages that are no beats."""
        found: list[dict[str, str]] = []
        while len(found) < count:
            message = json.loads(await self.communicator.receive_from(DEADLINE_SECONDS))
            found += [message] if message["event"] != "beat" else []
        return found

    async def closed(self) -> int:
        """The code of the close; what comes before it is left out."""
        while (message := await self.communicator.receive_output(DEADLINE_SECONDS))["type"] != "websocket.close":
            pass
        return int(message["code"])


async def test_a_websocket_gets_the_same():
    expected = await aappend(5)
    page = await stream().aread(limit=2)
    async with Socket(f"?after={page.next}") as socket:
        ready, *found = await socket.take(4)
        assert (ready["event"], ready["id"]) == ("ready", page.next)
        assert numbers(found) == expected[2:]
        assert found[-1]["id"] == (await stream().aread()).facts[-1].token
        await socket.communicator.send_to("what the browser says")
        (number,) = await aappend()
        assert numbers(await socket.take(1)) == [number]
        assert clients.open_clients() == 1
    await wait_for(lambda: clients.counts["left"] == 1)


async def test_a_websocket_is_asked_for_as_a_request_is():
    asked = []

    def allow(request):
        asked.append((request.path, request.GET["x"], request.COOKIES, request.is_secure(), request.headers["Origin"]))
        return False

    async with Socket("?x=1", allow=allow) as socket:
        assert await socket.closed() == 4403
    assert asked == [("/ws/orders/", "1", {"a": "b"}, False, "http://localhost")]


async def test_a_websocket_that_is_refused_learns_why():
    async with Socket("?after=rubbish") as socket:
        assert await socket.closed() == 4400
    with override_settings(REPLSITE_BROWSER_LIMIT=0):
        async with Socket() as socket:
            assert await socket.closed() == 4503


async def test_sessions_that_are_looked_up_for_others_delay_no_facts_of_a_websocket():
    """Channels looks them up in one thread, and facts were read there, too: after a crowd of made-up cookies."""

    def append_here() -> list[int]:
        try:
            return append()
        finally:
            connections.close_all()

    may_end = threading.Event()
    async with Socket() as socket:
        await socket.take(1)
        lookup = asyncio.ensure_future(database_sync_to_async(may_end.wait)(2 * DEADLINE_SECONDS))
        try:
            expected = await asyncio.to_thread(append_here)
            assert numbers(await socket.take(1)) == expected
            assert not lookup.done()
        finally:
            may_end.set()
            await lookup


async def test_a_websocket_from_a_page_of_another_site_is_refused():
    async with Socket(origin="http://evil.example") as socket:
        assert not socket.accepted
    assert clients.counts["opened"] == 0


async def test_a_websocket_ends_after_its_bytes():
    await aappend(30)
    with override_settings(REPLSITE_BROWSER_ANSWER_BYTES=300):
        async with Socket("?after=0") as socket:
            assert await socket.closed() == 1000
    assert clients.counts["bytes"] == 1


async def test_a_websocket_that_does_not_read_is_closed():
    sent: list[dict[str, Any]] = []
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "websocket.connect"})
    never = asyncio.Event()

    async def send(message):
        sent.append(message)
        if message["type"] == "websocket.close":
            incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
        elif len(sent) > 4:
            await never.wait()

    await aappend(10)
    scope = {
        "type": "websocket",
        "path": "/",
        "query_string": b"after=0",
        "headers": [(b"origin", b"http://localhost")],
    }
    application = stream_consumer(stream(), allow=lambda request: True, render=str).as_asgi()
    with override_settings(REPLSITE_SEND_STALL_LIMIT_SECONDS=0.3):
        async with asyncio.timeout(20):
            await application(scope, incoming.get, send)
    assert (sent[-1]["type"], sent[-1]["code"]) == ("websocket.close", 1008)
    assert (clients.counts["slow"], clients.open_clients()) == (1, 0)
