"""A follower that reports: its words take effect in the server's tables, survive reconnects, and end with it."""

from __future__ import annotations

import time

import pytest

from streams import workers
from streams.models import WorkerConnection
from streams.replication.common.command_hooks import subscribe
from streams.replication.protocol.client_state import ClientState
from streams.replication.protocol.commands import RemoteServerUp
from tests.integration.streams.test_follower import Followed
from tests.support.proxy import proxy_to
from tests.support.waiting import wait_until
from tests.support.wire_client import WireClient, start_replication

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def port(start_manage) -> int:
    return start_replication(start_manage)


class Speaking(Followed):
    """A follower of the server with a speaker; ``do`` calls on its loop."""

    def __init__(self, port: int) -> None:
        self.speaker = ClientState("zHeCu", "test", lambda: int(time.time() * 1000))
        super().__init__(port, speaker=self.speaker)

    def do(self, method, *arguments) -> None:
        self._loop.call_soon_threadsafe(method, *arguments)

    def __enter__(self):
        self.start()
        self.wait_until_positioned()  # what is no state is told to who is connected only
        return self

    def __exit__(self, *_):
        self.stop()


def syncing(*users: str) -> None:
    wait_until(lambda: workers.users_syncing() == set(users), what=f"syncing: {users}")


def test_who_syncs_is_known_again_after_a_reconnect(port):
    with proxy_to(port) as proxy, Speaking(proxy.port) as follower:
        follower.do(follower.speaker.start_syncing, "@a:b")
        follower.do(follower.speaker.start_syncing, "@gone:b")
        syncing("@a:b", "@gone:b")
        [first] = WorkerConnection.objects.values_list("key", flat=True)
        proxy.refuse()
        proxy.cut()
        follower.do(follower.speaker.stop_syncing, "@gone:b")
        syncing()
        proxy.refuse(False)
        syncing("@a:b")
        assert WorkerConnection.objects.get().key != first


def test_an_orderly_end_clears_who_synced(port):
    with Speaking(port) as follower:
        follower.do(follower.speaker.start_syncing, "@a:b")
        syncing("@a:b")
    syncing()


def test_acknowledgements_and_addresses_arrive(port):
    with Speaking(port) as follower:
        follower.do(follower.speaker.acknowledge_federation, 5)
        follower.do(follower.speaker.see, "@a:b", "token", "1.2.3.4", "ua")
        wait_until(lambda: workers.federation_acknowledged() == {"test": 5})
        wait_until(lambda: [sight.ip for sight in workers.seen_addresses("@a:b")] == ["1.2.3.4"])


def test_hints_are_told_to_others_and_heard_from_them(port):
    heard: list[str] = []
    stop = workers.on_remote_server_up(heard.append)
    try:
        with Speaking(port) as follower, WireClient(port, "NAME other") as other:
            other.read_until("SERVER")
            follower.do(follower.speaker.remote_server_up, "from.follower")
            other.read_until("REMOTE_SERVER_UP from.follower")
            other.say("REMOTE_SERVER_UP to.follower")
            wait_until(lambda: "to.follower" in heard)
        assert heard == ["to.follower"]
    finally:
        stop()


def test_a_handler_that_fails_stops_nothing(port):
    def fail(command) -> None:
        raise RuntimeError("for the test")

    heard: list[str] = []
    stops = [subscribe(RemoteServerUp, fail), workers.on_remote_server_up(heard.append)]
    try:
        with Speaking(port), WireClient(port, "NAME other") as other:
            other.say("REMOTE_SERVER_UP one")
            wait_until(lambda: heard == ["one"])
    finally:
        for stop in stops:
            stop()
