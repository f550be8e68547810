"""Whose turn it is when requests are more than places."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from functools import partial
from io import BytesIO
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.handlers.asgi import ASGIRequest

from replsite.http.request_places import (
    CAME,
    REFUSED_AFTER_SECONDS,
    Busy,
    Pool,
    RequestPlaces,
    _Place,
    request_threads_end,
    when_idle,
)
from replsite.metrics.shared_rendering import SharedRendering
from streams.browsers.threads import leave_the_requests_thread
from tests.support.async_waiting import wait_for
from tests.support.waiting import DEADLINE_SECONDS, wait_until


def scope(path: str = "/admin/", client: str = "192.0.2.1", method: str = "GET", cookie: bytes = b"") -> dict:
    headers = [(b"host", b"x"), (b"cookie", cookie)]
    return {"type": "http", "method": method, "path": path, "client": [client, 1], "headers": headers}


class Asked:
    """An application whose requests end when they are told to."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.threads: list[int] = []

    async def __call__(self, scope, receive, send) -> None:
        self.threads.append(await sync_to_async(threading.get_ident)())
        await self.may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})


async def ask(application, **of) -> int:
    said = []

    async def send(message) -> None:
        said.append(message)

    await application(scope(**of), None, send)
    return said[0].get("status", said[0]["type"])


async def test_requests_share_the_threads_of_the_places():
    asked = Asked()
    places = RequestPlaces(asked, pages=3)
    asked.may_end.set()
    assert await asyncio.gather(*(ask(places) for _ in range(30))) == [200] * 30
    assert len(set(asked.threads)) <= 3


@pytest.mark.parametrize(
    "path", ["/admin/api/sync", "/api/v1/rooms/!a/sync", "/api/v1/events/$a/sync", "/api/v1/users/sync"]
)
async def test_only_a_waiting_sync_takes_one_of_its_many_places(path):
    """The hundred places of waiting syncs must not become a hundred database connections."""
    places = RequestPlaces(Asked(), pages=1)
    for user in ("@a:b", "@a\n:b\n"):
        assert places._pool_for(f"/api/v1/users/{user}/sync", "GET") is places._waits
    assert places._pool_for(path, "GET") is places._pages


async def test_what_goes_on_without_a_thread_gives_its_place_back():
    may_end, begun = asyncio.Event(), []

    async def events(scope, receive, send) -> None:
        leave_the_requests_thread(ASGIRequest(scope | {"type": "http", "method": "GET"}, BytesIO()))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.append(await sync_to_async(threading.get_ident)())
        await may_end.wait()
        await sync_to_async(int)()  # closing the answer

    places = RequestPlaces(events, pages=2)
    asked = [asyncio.ensure_future(ask(places)) for _ in range(12)]
    await wait_for(lambda: len(begun) == 12)
    may_end.set()
    assert await asyncio.gather(*asked) == [200] * 12
    assert len(set(begun)) <= 2


async def test_pages_keep_out_neither_machines_nor_what_asks_no_database():
    asked = Asked()
    places = RequestPlaces(asked, pages=1)
    page = asyncio.ensure_future(ask(places))
    others = ["/metrics", "/health", "/health/live", "/static/x.css", "/_synapse/replication/x"]
    found = [asyncio.ensure_future(ask(places, path=path)) for path in others]
    await wait_for(lambda: len(asked.threads) == 6)
    asked.may_end.set()
    assert await asyncio.gather(page, *found) == [200] * 6


async def test_a_crowd_that_logs_in_keeps_no_page_out():
    """Each password is half a second of a core; twenty at a time kept the loop waiting for seconds."""
    asked = Asked()
    places = RequestPlaces(asked, pages=2)
    logins = [asyncio.ensure_future(ask(places, path="/admin/login/", method="POST")) for _ in range(30)]
    pages = [asyncio.ensure_future(ask(places, path=path)) for path in ("/admin/", "/admin/login/")]
    least = max((os.cpu_count() or 1) // 2, 1)
    await wait_for(lambda: len(asked.threads) == least + 2)
    asked.may_end.set()
    assert await asyncio.gather(*logins, *pages) == [200] * 32


async def test_who_looks_already_does_not_wait_behind_a_crowd_of_made_up_cookies():
    """An open live page was answered after 9.6 seconds beside 9,000 questions of strangers."""
    status = {b"a viewer": 200}
    may_end = asyncio.Event()

    async def questions(scope, receive, send) -> None:
        found = status.get(dict(scope["headers"])[b"cookie"], 403)
        if found == 403:
            await may_end.wait()
        await send({"type": "http.response.start", "status": found, "headers": []})

    places = RequestPlaces(questions)
    live = partial(ask, places, path="/admin/live/data/")
    assert await live(cookie=b"a viewer") == 200
    crowd = [asyncio.ensure_future(live(cookie=b"made up %d" % number)) for number in range(50)]
    await wait_for(lambda: places._live.at_work == 4)
    for found in (304, 200, 304):
        status[b"a viewer"] = found
        assert await asyncio.wait_for(live(cookie=b"a viewer"), DEADLINE_SECONDS) == found
    late = asyncio.ensure_future(live(cookie=b"another viewer"))
    del status[b"a viewer"]  # signed out
    out = asyncio.ensure_future(live(cookie=b"a viewer"))
    await wait_for(lambda: places._open.at_work == 1)
    may_end.set()
    assert await asyncio.gather(*crowd, late, out) == [403] * 52
    assert not places._viewers


async def test_who_opens_a_live_page_does_not_wait_behind_a_crowd_of_made_up_cookies(monkeypatch):
    """The page came, by the places of users, but each of its questions was refused for as long as the strangers stayed."""
    monkeypatch.setattr("replsite.http.request_places.is_real", {"real": True}.get)
    loaded: list[str] = []
    monkeypatch.setattr(
        "replsite.http.request_places.SessionStore", lambda key: SimpleNamespace(load=lambda: loaded.append(key))
    )
    may_end = asyncio.Event()

    async def questions(scope, receive, send) -> None:
        if not (is_real := b"=real" in dict(scope["headers"])[b"cookie"]):
            await may_end.wait()
        await send({"type": "http.response.start", "status": 200 if is_real else 403, "headers": []})

    for path in ("/admin/live/data/", "/admin/facts/events/"):
        places, may_end = RequestPlaces(questions), asyncio.Event()
        live = partial(ask, places, path=path)
        crowd = [asyncio.ensure_future(live(cookie=b"sessionid=made%dup" % number)) for number in range(50)]
        pool = places._pool_for(path, "GET")
        await wait_for(lambda pool=pool: pool.at_work == 4)
        assert await asyncio.wait_for(live(cookie=b"sessionid=real"), DEADLINE_SECONDS) == 200
        may_end.set()
        assert await asyncio.gather(*crowd) == [403] * 50
    assert loaded == ["real"] * 2, "one that was deleted since keeps no place"


@pytest.mark.parametrize("refused", [302, 404, 405, 503])
async def test_who_looked_once_keeps_no_place_by_questions_that_look_for_no_session(refused):
    """At ``/nowhere/live/data/``, or by POST: nobody asks whether the session is still there."""
    status = [200, refused]

    async def questions(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": status.pop(0), "headers": []})

    places = RequestPlaces(questions)
    for found in (200, refused):
        assert await ask(places, path="/nowhere/live/data/", cookie=b"a viewer") == found
    assert bool(places._viewers) == (refused == 503), "while the database is away, nobody is known to be gone"


async def test_a_crowd_of_made_up_sessions_keeps_no_user_out(monkeypatch):
    """A user got 503 at once, as the queue was full of strangers."""
    asked: list[str] = []
    monkeypatch.setattr("replsite.http.request_places.is_real", {"real": True}.get)
    monkeypatch.setattr(
        "replsite.http.request_places.SessionStore", lambda key: SimpleNamespace(load=lambda: asked.append(key))
    )
    may_end = asyncio.Event()

    async def pages(scope, receive, send) -> None:
        if b"=real" not in dict(scope["headers"])[b"cookie"]:
            await may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    places = RequestPlaces(pages, pages=2)
    crowd = [asyncio.ensure_future(ask(places, cookie=b"sessionid=made%dup" % number)) for number in range(202)]
    await wait_for(lambda: places._pages.at_work == 2)
    assert await ask(places, cookie=b"sessionid=another") == await ask(places, cookie=b"othersessionid=real") == 503
    for cookie in (b"sessionid=real", b"a=b; sessionid=real; c=d"):
        assert await asyncio.wait_for(ask(places, cookie=cookie), DEADLINE_SECONDS) == 200
    may_end.set()
    assert await asyncio.gather(*crowd) == [200] * 202
    assert asked == ["real", "real"]


async def test_who_is_refused_cannot_ask_again_at_once():
    """500 clients made 4,000 requests a second, all refused, and pages waited for the event loop."""
    asked = Asked()
    places = RequestPlaces(asked, pages=1)
    crowd = [asyncio.ensure_future(ask(places)) for _ in range(201)]
    await wait_for(lambda: places._pages.at_work == 1)
    begun = time.monotonic()
    assert await asyncio.gather(*(ask(places) for _ in range(50))) == [503] * 50
    assert REFUSED_AFTER_SECONDS <= time.monotonic() - begun < DEADLINE_SECONDS
    asked.may_end.set()
    assert await asyncio.gather(*crowd) == [200] * 201


async def test_a_crowd_of_made_up_sessions_keeps_no_program_out():
    """A client of the API got 503 for as long as strangers came: it has a token, and no session by which to be known."""
    status = {b"Bearer real": 200}
    may_end = asyncio.Event()

    async def pages(scope, receive, send) -> None:
        found = 200 if scope["path"].endswith("/openapi.json") else status.get(scope["headers"][-1][1], 401)
        if b"=made" in dict(scope["headers"])[b"cookie"]:
            await may_end.wait()
        await send({"type": "http.response.start", "status": found, "headers": []})

    async def program(token: bytes, path: str = "/api/v1/rooms") -> int:
        asked = asyncio.ensure_future(ask(with_token(token), path=path))
        return await asyncio.wait_for(asked, DEADLINE_SECONDS)

    def with_token(token: bytes):
        return lambda of, receive, send: places(
            of | {"headers": [*of["headers"], (b"authorization", b"Bearer " + token)]}, receive, send
        )

    places = RequestPlaces(pages, pages=2)
    assert [await program(b"real"), await program(b"made up", "/api/v1/openapi.json")] == [200, 200]
    await wait_for(lambda: places._pages.at_work == 0)
    crowd = [asyncio.ensure_future(ask(places, cookie=b"sessionid=made%dup" % number)) for number in range(202)]
    await wait_for(lambda: places._pages.at_work == 2)
    assert await program(b"made up") == await program(b"real", "/admin/") == 503
    assert [await program(b"real") for _ in range(3)] == [200] * 3
    del status[b"Bearer real"]  # revoked
    assert [await program(b"real") for _ in range(2)] == [401, 503]
    may_end.set()
    assert await asyncio.gather(*crowd) == [401] * 202


async def test_a_crowd_that_reads_facts_keeps_no_page_out():
    """A thousand long polls of a busy stream ask again with each fact: viewers of pages were told to come again."""
    asked = Asked()
    places = RequestPlaces(asked, pages=2)
    paths = ("/admin/facts/stream/", "/admin/facts/events/")
    readers = [asyncio.ensure_future(ask(places, path=path)) for path in paths * 150]
    page = asyncio.ensure_future(ask(places))
    await wait_for(lambda: len(asked.threads) == 4 + 1)
    asked.may_end.set()
    assert await asyncio.gather(page, *readers) == [200] * 301


async def test_what_only_begins_like_a_probe_takes_no_place_of_probes():
    """A proxy passes ``/healthx`` on, and a load balancer's probe was told to come again."""
    places = RequestPlaces(Asked(), pages=1)
    assert {places._pool_for(path, "GET") for path in ("/health", "/health/ready")} == {places._health}
    assert {places._pool_for(path, "GET") for path in ("/healthx", "/health/x", "/health/")} == {places._pages}


async def test_a_crowd_of_scrapes_keeps_no_probe_out():
    asked = Asked()
    places = RequestPlaces(asked)
    scrapes = [asyncio.ensure_future(ask(places, path="/metrics")) for _ in range(50)]
    await wait_for(lambda: len(asked.threads) == 4)
    probe = asyncio.ensure_future(ask(places, path="/health/ready"))
    await wait_for(lambda: len(asked.threads) == 5)
    asked.may_end.set()
    assert await asyncio.gather(probe, *scrapes) == [200] * 51


async def test_scrapes_that_wait_for_their_turn_share_a_page_with_those_that_have_it():
    """Each four that had a place made a page of their own; of a crowd the last ones were sent away."""
    made, came = [], []

    def render() -> bytes:
        made.append(time.monotonic())
        if len(made) == 1:
            wait_until(lambda: len(came) == 300, what="all have come")
        return b""

    shared = SharedRendering(render)

    async def page(scope, receive, send) -> None:
        await sync_to_async(shared.get)(scope[CAME])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    places = RequestPlaces(page)

    async def come() -> int:
        came.append(1)
        return await ask(places, path="/metrics")

    assert await asyncio.gather(*(come() for _ in range(300))) == [200] * 300
    assert len(made) <= 3  # the last one may have come a moment after it was counted


async def test_a_place_goes_to_who_has_waited_longest_and_is_used_again():
    lane = Pool("pages", 1, 10)
    place = await lane.enter()
    waiting = [asyncio.ensure_future(lane.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    for number in range(3):
        assert [one.done() for one in waiting] == [True] * number + [False] * (3 - number)
        lane.leave(place)
        assert await waiting[number] is place


async def test_places_that_are_not_needed_stay_unused():
    lane = Pool("pages", 20, 10)
    used = set()
    for _ in range(5):
        used.add(place := await lane.enter())
        lane.leave(place)
    assert len(used) == 1


async def test_when_too_many_wait_the_next_one_is_sent_away():
    lane = Pool("pages", 1, 3)
    place = await lane.enter()
    waiting = [asyncio.ensure_future(lane.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await lane.enter()
    assert lane.refused == 1
    lane.leave(place)
    await waiting[0]
    for one in waiting[1:]:
        one.cancel()


async def test_who_waits_too_long_is_sent_away_and_a_place_given_to_one_that_left_is_not_lost():
    lane = Pool("pages", 1, 10, wait_seconds=0.05)
    place = await lane.enter()
    with pytest.raises(Busy):
        await lane.enter()
    gone = asyncio.ensure_future(lane.enter())
    await asyncio.sleep(0)
    lane.leave(place)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await asyncio.wait_for(lane.enter(), DEADLINE_SECONDS) is place


async def test_a_place_is_free_when_its_thread_is():
    """A client that went left its thread at work, and the next request at that place waited for it."""
    may_end, begun = threading.Event(), threading.Event()

    async def application(scope, receive, send) -> None:
        if scope["path"] == "/slow":
            await sync_to_async(lambda: (begun.set(), may_end.wait(DEADLINE_SECONDS)))()
        await sync_to_async(threading.get_ident)()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    places = RequestPlaces(application, pages=2)
    try:
        gone = asyncio.ensure_future(ask(places, path="/slow"))
        await wait_for(begun.is_set)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await asyncio.wait_for(ask(places), DEADLINE_SECONDS) == 200
        await wait_for(lambda: places._pages.at_work == 1)
    finally:
        may_end.set()
    await wait_for(lambda: places._pages.at_work == 0)


def test_a_thread_that_works_on_after_the_servers_end_logs_no_error(caplog):
    place, may_end = _Place(), threading.Event()

    async def serve() -> None:
        place.executor.submit(may_end.wait)
        when_idle(place, list)

    asyncio.run(serve())
    may_end.set()
    place.executor.shutdown()
    assert not caplog.records


async def test_the_end_waits_for_threads_of_requests_that_were_cancelled():
    """The thread calls the event loop, as Django's middleware does. When nothing waited, it never got its answer."""
    works, may_call, called = threading.Event(), threading.Event(), []

    async def view() -> None:
        called.append(await sync_to_async(int)())

    def middleware() -> None:
        works.set()
        may_call.wait()
        async_to_sync(view)()

    async def application(scope, receive, send) -> None:
        await sync_to_async(middleware)()

    request = asyncio.ensure_future(ask(RequestPlaces(application)))
    await wait_for(works.is_set)
    request.cancel()
    await asyncio.wait([request])
    asyncio.get_running_loop().call_soon(may_call.set)
    await request_threads_end()
    assert called == [0]
