"""What a call of ``sync`` refuses before it asks anybody, and what is done with its answers."""

from __future__ import annotations

import pytest

from events.errors import InvalidQuery
from events.notifier.routing import Target
from events.sync.providers import LatestRowPerKey, StreamChanges, join_sync
from events.sync.sync import SyncAnswer, resync_user, sync
from streams.errors import UnknownStream

ALICE = "@alice:x"


@pytest.mark.parametrize("user", ["", "\0", "\ud800", None, 5])
def test_what_is_no_user_is_refused(user):
    with pytest.raises(InvalidQuery):
        sync(user)


@pytest.mark.parametrize("seconds", [-1, 1e9, float("nan"), "5", None, []])
def test_a_time_that_cannot_be_waited_is_refused(seconds):
    with pytest.raises(InvalidQuery):
        sync(ALICE, timeout_seconds=seconds)


@pytest.mark.parametrize("events", [0, -1, 1.5, True])
def test_a_limit_that_cannot_be_is_refused(events):
    with pytest.raises(InvalidQuery):
        sync(ALICE, events=events)


@pytest.mark.parametrize("user", ["", "\0"])
def test_a_mark_is_for_a_user(user):
    with pytest.raises(InvalidQuery):
        resync_user(user)


def test_changes_are_put_in_and_what_is_gone_taken_out():
    held = {("!1", "a"): 1, ("!1", "b"): 2, ("!2", "a"): 3}
    assert StreamChanges({("!3", "a"): 4}, frozenset({("!1",)})).apply_to(held) == {("!2", "a"): 3, ("!3", "a"): 4}
    assert StreamChanges({("!1", "a"): 9}, frozenset({("!1",), ("!2", "a")})).apply_to(held) == {("!1", "a"): 9}
    assert StreamChanges({("!1", "b"): 5}).apply_to(held) == {**held, ("!1", "b"): 5}
    assert StreamChanges({("!9",): 0}, whole=True).apply_to(held) == {("!9",): 0}
    assert held == {("!1", "a"): 1, ("!1", "b"): 2, ("!2", "a"): 3}


def test_what_brings_nothing_is_false():
    assert not StreamChanges()
    assert StreamChanges(whole=True)
    assert StreamChanges(gone=frozenset({("!1",)}))
    assert not SyncAnswer("events-1@x")
    assert SyncAnswer("events-1@x", full=True)


def test_only_streams_that_there_are_join_and_each_once():
    with pytest.raises(UnknownStream):
        join_sync(LatestRowPerKey("no_such_stream", Target.USER, "user_id", ("user_id",)))
    with pytest.raises(ValueError, match="register it once"):
        join_sync(LatestRowPerKey("receipts", Target.ROOM, "room_id", ("room_id",)))
