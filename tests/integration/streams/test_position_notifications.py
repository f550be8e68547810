"""Notifications: heard while connected, repaired by looking after every connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from streams.reading.position_notifications import PositionListener, PositionNotification
from tests.support.waiting import wait_until
from tests.support.writing import append, is_open, terminate

pytestmark = pytest.mark.django_db(transaction=True)


class Ear:
    """What a listener reported."""

    def __init__(self) -> None:
        self.heard: list[list[PositionNotification]] = []
        self.listener = PositionListener(self.heard.append)
        self.listener.start()

    def all(self) -> list[PositionNotification]:
        return [notification for notifications in self.heard for notification in notifications]


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.listener.stop()


def test_a_connection_begins_with_a_look_at_everything(ear):
    wait_until(lambda: ear.heard == [[]])


def test_announcements_are_heard(ear):
    taken = append()
    wait_until(lambda: PositionNotification("caches", "master", taken[0]) in ear.all())


def test_a_lost_connection_comes_back_with_a_look_at_everything(ear):
    wait_until(lambda: ear.heard)
    terminate(ear.listener._connection.session)
    wait_until(lambda: ear.heard.count([]) == 2)
    taken = append()
    wait_until(lambda: PositionNotification("caches", "master", taken[0]) in ear.all())


def test_a_callback_that_fails_does_not_end_the_listening():
    heard: list[int] = []

    def fails(notifications: list[PositionNotification]) -> None:
        heard.append(len(notifications))
        raise RuntimeError("for the test")

    listener = PositionListener(fails)
    listener.start()
    try:
        wait_until(lambda: heard == [0])
        append()
        wait_until(lambda: len(heard) > 1)
    finally:
        listener.stop()


def test_stopping_leaves_neither_thread_nor_session():
    ear = Ear()
    wait_until(lambda: ear.heard)
    pid = ear.listener._connection.session
    ear.listener.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("replsite-notifications")]
    wait_until(lambda: not is_open(pid))


@pytest.mark.parametrize(
    ("payload", "notification"),
    [
        ("events north 12", PositionNotification("events", "north", 12)),
        ("events north", PositionNotification("events", "north", None)),
        ("events north x", PositionNotification("events", "north", None)),
        ("events north ²", PositionNotification("events", "north", None)),
        ("events", PositionNotification("events", "", None)),
        ("", PositionNotification("", "", None)),
    ],
)
def test_parse(payload, notification):
    assert PositionNotification.parse(payload) == notification


class NudgedListener(PositionListener):
    """Counts the nudges that came to its thread."""

    def __init__(self) -> None:
        super().__init__(lambda notifications: None)
        self.threads: list[int] = []

    def nudged(self) -> None:
        self.threads.append(threading.get_ident())


def test_a_nudge_comes_to_the_listeners_thread_and_many_at_once_are_one():
    listener = NudgedListener()
    listener.nudge()  # not started: nobody listens
    listener.start()
    for number in range(3):
        listener.nudge()
        wait_until(lambda: len(listener.threads) > number)  # noqa: B023 - called in this round
    for _ in range(10_000):  # more than a pipe holds would block the caller
        listener.nudge()
    wait_until(lambda: len(listener.threads) > 3)
    assert set(listener.threads) == {listener._thread.ident}
    listener.stop()
    listener.nudge()


def test_a_nudge_while_the_connection_is_lost_keeps_nobody_busy():
    listener = NudgedListener()
    listener.start()
    terminate(listener._connection.session)
    for _ in range(100):
        listener.nudge()
    wait_until(lambda: not listener._connection.closed)
    count = len(listener.threads)
    listener.nudge()
    wait_until(lambda: len(listener.threads) > count)
    listener.stop()
