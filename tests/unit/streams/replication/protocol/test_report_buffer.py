"""What workers said, waiting to be written: the last word counts, and nothing grows without end."""

from __future__ import annotations

import hashlib

import pytest

from streams.replication.protocol.commands import ClearUserSync, FederationAck, Ping, UserIP, UserSync
from streams.replication.protocol.report_buffer import LATEST_MS, ReportBuffer, Sync


def start(user="@a:b", worker="w", ms=5, device=None):
    return UserSync(worker, user, True, ms, device)


def end(user="@a:b", worker="w", device=None):
    return UserSync(worker, user, False, 6, device)


def seen(user="@a:b", token="t", ip="::1", ms=7, **more):
    return UserIP(user, token, ip, more.get("agent", "ua"), more.get("device", "D"), ms)


@pytest.fixture
def buffer():
    return ReportBuffer(limit=10)


def said(buffer, *commands, connection="c"):
    for command in commands:
        buffer.add(connection, command)
    return buffer.drain()


def test_other_commands_are_no_reports(buffer):
    assert not buffer.add("c", Ping("1"))
    assert not buffer.has_reports


def test_a_start_is_reported_with_its_time(buffer):
    assert said(buffer, start()).starts == {Sync("c", "w", "@a:b", ""): 5}
    assert not buffer.has_reports


def test_an_end_takes_back_a_start_that_waits(buffer):
    reports = said(buffer, start(), end())
    assert (reports.starts, reports.ends) == ({}, {Sync("c", "w", "@a:b", "")})


def test_a_start_takes_back_an_end_that_waits(buffer):
    reports = said(buffer, start(), end(), start())
    assert (list(reports.starts), reports.ends) == ([Sync("c", "w", "@a:b", "")], set())


def test_devices_sync_by_themselves(buffer):
    reports = said(buffer, start(device="A"), start(device="None"), end(device="A"))
    assert list(reports.starts) == [Sync("c", "w", "@a:b", "")]


def test_clearing_forgets_what_waits_and_what_is_stored(buffer):
    reports = said(buffer, start(), start(worker="other"), ClearUserSync("w"), start("@new:b"))
    assert reports.cleared == {"w"}
    assert {sync.user for sync in reports.starts if sync.worker == "w"} == {"@new:b"}
    assert Sync("c", "other", "@a:b", "") in reports.starts


def test_a_connection_takes_its_users_with_it(buffer):
    buffer.add("c", start())
    buffer.remove("c")
    reports = buffer.drain()
    assert (reports.ended, reports.starts) == ({"c"}, {})


def test_a_connection_that_reported_nobody_leaves_nothing(buffer):
    buffer.remove("c")
    assert not buffer.has_reports


def test_a_worker_that_comes_back_leaves_its_old_connection(buffer):
    buffer.add("old", start())
    buffer.add("new", start("@other:b"))
    reports = buffer.drain()
    assert reports.owners == {"w": "new"}
    assert [sync.user for sync in reports.starts] == ["@other:b"]
    buffer.remove("old")
    assert buffer.connections() == ["new"]


def test_a_worker_without_room_for_its_move_is_dropped_and_counted(buffer):
    """Its users were stored on the new connection, and those of the old connection stayed beside them, uncounted."""
    said(buffer, start("@old:b"), connection="old")
    for number in range(5):  # all the room that one connection may take
        buffer.add("c", ClearUserSync(f"other{number}"))
    buffer.add("c", start("@new:b"))
    assert buffer.dropped == {"USER_SYNC": 1}
    reports = buffer.drain()
    assert (reports.starts, reports.owners) == ({}, {})
    reports = said(buffer, start("@new:b"))
    assert reports.owners == {"w": "c"}
    assert list(reports.starts) == [Sync("c", "w", "@new:b", "")]


def test_the_last_acknowledgement_counts_even_when_it_is_lower(buffer):
    """The stream restarts at 0 with its writer."""
    assert said(buffer, FederationAck("s", 9), FederationAck("s", 2)).acknowledged == {"s": 2}


def test_an_address_keeps_its_latest_sight_and_no_token(buffer):
    [(key, value)] = said(buffer, seen(ms=9), seen(ms=4, device="E")).addresses.items()
    assert key == ("@a:b", hashlib.sha256(b"t").hexdigest(), "::1")
    assert value == ("E", "ua", 9)


@pytest.mark.parametrize("ms", [10**30, LATEST_MS + 1])
def test_times_that_no_database_holds_are_cut(buffer, ms):
    assert said(buffer, seen(ms=ms)).addresses.popitem()[1][2] == LATEST_MS
    assert said(buffer, start(ms=-ms)).starts.popitem()[1] == 0


def test_text_that_no_column_holds_is_replaced(buffer):
    reports = said(buffer, seen(agent="a\0\ud800"), UserSync("w\0", "@\ud800:b", True, 1))
    assert reports.addresses.popitem()[1][1] == "a\ufffd\\ud800"
    assert reports.starts.popitem()[0][1:3] == ("w\ufffd", "@\\ud800:b")


def test_a_long_agent_is_cut(buffer):
    assert said(buffer, seen(agent="a" * 900)).addresses.popitem()[1][1] == "a" * 250


@pytest.mark.parametrize(
    "command",
    [start("@" * 600), ClearUserSync("w" * 600), FederationAck("s" * 600, 1), seen(user="@" * 600), seen(ip="1" * 600)],
)
def test_names_that_no_index_holds_are_dropped_and_counted(buffer, command):
    assert not said(buffer, command)
    assert buffer.dropped == {command.WORD: 1}


@pytest.mark.parametrize(
    "commands",
    [
        [start(f"@{n}:b") for n in range(30)],
        [start(worker=f"w{n}") for n in range(30)],
        [end(f"@{n}:b") for n in range(30)],
        [end(worker=f"w{n}") for n in range(30)],
        [ClearUserSync(f"w{n}") for n in range(30)],
        [FederationAck(f"s{n}", 1) for n in range(30)],
        [seen(token=f"t{n}") for n in range(30)],
    ],
)
def test_a_flood_is_bounded_and_counted_and_leaves_room_for_others(buffer, commands):
    """One connection could use up the limit; the next worker's users were dropped."""
    for command in commands:
        buffer.add("c", command)
    assert buffer.dropped == {commands[0].WORD: 25}
    for command in commands[-2:]:
        buffer.add("another", command)
    assert buffer.dropped == {commands[0].WORD: 25}, "another one is heard"
    for number in range(30):
        for command in commands:
            buffer.add(f"c{number}", command)
    reports = buffer.drain()
    waiting = (reports.ends, reports.starts, reports.acknowledged, reports.addresses, reports.cleared)
    assert 5 <= max(map(len, waiting)) <= 10


def test_what_was_written_makes_room_again(buffer):
    for turn in range(3):
        assert len(said(buffer, *(seen(token=f"t{turn} {n}") for n in range(9))).addresses) == 5
        assert len(said(buffer, *(end(f"@{turn}{n}:b") for n in range(9))).ends) == 5


def test_one_that_starts_and_ends_again_and_again_uses_up_nothing(buffer):
    reports = said(buffer, *[start(), end()] * 50)
    assert (len(reports.ends), buffer.dropped) == (1, {})
    for turn in range(50):
        buffer.add(f"c{turn % 2}", start())
    assert not buffer.dropped
    assert list(buffer.drain().owners) == ["w"]
    assert buffer._users_of.total() == buffer._users == 1


def test_workers_that_come_and_go_leave_nothing_in_memory(buffer):
    for number in range(1_000):
        said(buffer, start(worker=f"w{number}"), end(worker=f"w{number}"))
    assert not buffer._workers
    assert buffer._users == 0
    assert not buffer._users_of
    assert buffer._connections == {"c": set()}


def test_room_is_made_by_those_that_leave(buffer):
    said(buffer, *(start(f"@{n}:b") for n in range(5)), end("@3:b"))
    assert said(buffer, start("@new:b")).starts
    assert not buffer.dropped
