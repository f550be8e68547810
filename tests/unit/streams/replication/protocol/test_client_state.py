"""What a follower says about itself: said once, and again to every new connection."""

from __future__ import annotations

import pytest

from streams.replication.errors import UnsendableCommand
from streams.replication.protocol.client_state import MOST_ADDRESSES, ClientState
from streams.replication.protocol.commands import (
    ClearUserSync,
    FederationAck,
    RemoteServerUp,
    UserIP,
    UserSync,
    format_line,
)
from streams.replication.protocol.connection import ClientConnection


class Clock:
    ms = 1_000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def speaker(clock):
    made = ClientState("zHeCu", "worker1", lambda: clock.ms)
    made.said = []
    made.attach(made.said.append)
    return made


def test_the_first_start_and_the_last_stop_are_said(speaker):
    speaker.start_syncing("@a:b")
    speaker.start_syncing("@a:b")
    speaker.stop_syncing("@a:b")
    assert speaker.said == [UserSync("zHeCu", "@a:b", True, 1_000)]
    speaker.stop_syncing("@a:b")
    assert speaker.said[1:] == [UserSync("zHeCu", "@a:b", False, 1_000)]


def test_a_stop_without_a_start_is_a_mistake(speaker):
    with pytest.raises(KeyError):
        speaker.stop_syncing("@a:b")


def test_a_new_connection_is_told_everything_that_lasts(speaker):
    speaker.attach(None)
    speaker.start_syncing("@a:b")
    speaker.start_syncing("@c:b", "DEV")
    speaker.start_syncing("@gone:b")
    speaker.stop_syncing("@gone:b")
    speaker.acknowledge_federation(7)
    speaker.remote_server_up("not.remembered")
    assert speaker.greeting() == [
        UserSync("zHeCu", "@a:b", True, 1_000),
        UserSync("zHeCu", "@c:b", True, 1_000, "DEV"),
        FederationAck("worker1", 7),
    ]


def test_the_greeting_comes_before_replicate(speaker):
    """A real worker says NAME, PING, USER_SYNC for each user, REPLICATE."""
    speaker.start_syncing("@a:b")
    client = ClientConnection("worker1", before_replicate=speaker.greeting)
    client.connected(1.0)
    words = [line.split(b" ")[0] for line in client.pop_output().splitlines()]
    assert words == [b"NAME", b"PING", b"USER_SYNC", b"REPLICATE"]


def test_an_orderly_end_clears_who_synced(speaker):
    assert speaker.farewell() == []
    speaker.start_syncing("@a:b")
    assert speaker.farewell() == [ClearUserSync("zHeCu")]


def test_an_address_is_told_once_in_two_minutes(speaker, clock):
    for _ in range(3):
        speaker.see("@a:b", "token", "::1", "ua")
    speaker.see("@a:b", "token", "::2", "ua")
    assert len(speaker.said) == 2
    clock.ms += 120_000
    speaker.see("@a:b", "token", "::1", "ua", "DEV")
    assert speaker.said[-1] == UserIP("@a:b", "token", "::1", "ua", "DEV", 121_000)


def test_memory_of_addresses_is_bounded(speaker):
    for number in range(MOST_ADDRESSES + 50):
        speaker.see("@a:b", f"token{number}", "::1", "ua")
    assert len(speaker._seen) == MOST_ADDRESSES


def test_an_empty_server_name_is_told_too(speaker):
    speaker.remote_server_up("")
    assert [format_line(command) for command in speaker.said] == [b"REMOTE_SERVER_UP \n"]
    assert isinstance(speaker.said[0], RemoteServerUp)


def test_what_no_line_carries_is_refused_and_not_remembered(speaker):
    for call in (
        lambda: speaker.start_syncing("two words"),
        lambda: speaker.see("two words", "t", "::1", "ua"),
        lambda: speaker.see("@a:b", "t", "::1", "u" * 20_000),
        lambda: speaker.remote_server_up("two\nlines"),
    ):
        with pytest.raises(UnsendableCommand):
            call()
    assert speaker.said == speaker.greeting() == []
