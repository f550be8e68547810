"""Answers beside writers: every event comes once, whoever writes meanwhile."""

from __future__ import annotations

import threading

import pytest
from django.db import connections

from events.sending.send import LocalRoom, create_room
from events.sync.rooms import rooms_since
from events.tokens.positions import events_token
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ANN = "@ann:site"
ROOMS, MESSAGES = 3, 12


@pytest.fixture
def rooms():
    return [create_room(ANN).room_id for _ in range(ROOMS)]


class Talkers:
    """A thread for each room says something, again and again; ``said`` are the events in the order of each room."""

    def __init__(self, rooms):
        self.said = {room: [] for room in rooms}
        self._threads = [threading.Thread(target=self._talk, args=(room,)) for room in rooms]

    def _talk(self, room):
        try:
            for number in range(MESSAGES):
                event = LocalRoom(room).send(ANN, "m.room.message", {"body": str(number)})
                self.said[room].append(event.event_id)
        finally:
            connections.close_all()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)

    @property
    def done(self):
        return not any(thread.is_alive() for thread in self._threads)

    def all(self):
        return sorted(event for events in self.said.values() for event in events)


def test_rooms_since_gives_each_event_once(rooms):
    token, found = events_token(), []

    def read():
        nonlocal token
        done, now = talkers.done, events_token()
        for room in rooms_since(ANN, token, now, limit=100).joined:
            assert not room.limited
            found.extend(room.timeline)
        moved, token = token != now, now
        return done and not moved and len(found) >= ROOMS * MESSAGES

    with Talkers(rooms) as talkers:
        wait_until(read)
    assert sorted(event.event_id for event in found) == talkers.all()
