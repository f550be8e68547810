"""Which handshakes are read at a time, and that what comes after them keeps no place."""

from __future__ import annotations

import asyncio
import threading

import pytest
from channels.db import database_sync_to_async

from replsite.http.handshake_places import HandshakePlaces
from replsite.http.request_places import LANES
from tests.support.async_waiting import wait_for


class Viewers:
    """An application that keeps its WebSockets, and the reading of users, which ends when it is told to."""

    def __init__(self) -> None:
        self.users: list[object] = []
        self.threads: list[int] = []
        self.may_read, self.may_end = threading.Event(), asyncio.Event()

    def read(self, scope) -> str:
        self.threads.append(threading.get_ident())
        self.may_read.wait(60)
        return f"user of {scope['client'][0]}"

    async def __call__(self, scope, receive, send) -> None:
        self.users.append(str(scope["user"]))
        await send({"type": "websocket.accept"})
        await self.may_end.wait()


@pytest.fixture
def viewers(monkeypatch):
    made = Viewers()
    monkeypatch.setattr("channels.auth.get_user", database_sync_to_async(made.read))
    before = list(LANES)
    yield made
    made.may_read.set()
    # A place that is taken as the test's loop ends is never left, and the end of a server waits for all.
    LANES[:] = before


async def shake_hands(application, client: str = "192.0.2.1") -> list[str]:
    said: list[str] = []

    async def send(message) -> None:
        said.append(message["type"])

    await application({"type": "websocket", "path": "/ws/live/", "client": [client, 1], "headers": []}, None, send)
    return said


async def test_handshakes_share_few_threads_and_their_websockets_keep_none(viewers):
    places = HandshakePlaces(viewers, places=2)
    [pool] = [pool for pool in LANES if pool.name == "handshakes"]
    tasks = [asyncio.ensure_future(shake_hands(places)) for _ in range(30)]
    await wait_for(lambda: len(viewers.threads) == 2)
    assert pool.at_work == 2
    viewers.may_read.set()
    await wait_for(lambda: len(viewers.users) == 30)
    await wait_for(lambda: pool.at_work == 0)
    assert set(viewers.users) == {"user of 192.0.2.1"}
    assert len(set(viewers.threads)) == 2
    viewers.may_end.set()
    assert await asyncio.gather(*tasks) == [["websocket.accept"]] * 30


async def test_of_a_crowd_that_waits_the_oldest_are_refused_and_others_have_their_turn(viewers, caplog):
    places = HandshakePlaces(viewers, places=1)
    crowd = [asyncio.ensure_future(shake_hands(places)) for _ in range(300)]
    await wait_for(lambda: sum(task.done() for task in crowd) >= 99)
    single = asyncio.ensure_future(shake_hands(places, "198.51.100.1"))
    await wait_for(lambda: sum(task.done() for task in crowd) == 100)
    viewers.may_read.set()
    await wait_for(lambda: "user of 198.51.100.1" in viewers.users)
    assert viewers.users.index("user of 198.51.100.1") <= 2
    viewers.may_end.set()
    assert await single == ["websocket.accept"]
    assert sorted(await asyncio.gather(*crowd)) == [["websocket.accept"]] * 200 + [["websocket.close"]] * 100
    assert len([record for record in caplog.records if "site.busy" in record.getMessage()]) == 1
