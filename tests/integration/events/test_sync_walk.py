"""Random talk in some rooms: who applies the answers to what they know has what a fresh first answer tells."""

from __future__ import annotations

import random

import pytest

from events.errors import EventNotAllowed
from events.models import CurrentState
from events.sending.send import NewEvent, RoomSetup, create_room
from tests.support import syncing

pytestmark = pytest.mark.django_db

ADMIN = "@admin:site"
USERS = ["@ann:site", "@bob:site", "@eve:else"]
ACTIONS = 80
VISIBILITIES = ["world_readable", "shared", "invited", "joined"]


class Client(syncing.Client):
    """A client that is compared with the tables."""

    def check(self):
        """Rooms, their states and what is pending are those of the tables."""
        own = CurrentState.objects.filter(type="m.room.member", state_key=self.user)
        memberships = dict(own.values_list("room_id", "membership"))
        assert self.pending == {room: m for room, m in memberships.items() if m in ("invite", "knock")}
        assert set(self.rooms) == {room for room, membership in memberships.items() if membership == "join"}
        for room_id, state in self.rooms.items():
            rows = CurrentState.objects.filter(room_id=room_id).values_list("type", "state_key", "event_id")
            assert state == {(kind, key): event_id for kind, key, event_id in rows}


def act(chance, rooms):
    """Something that somebody does; what is not allowed does not happen."""
    room, user = chance.choice(rooms), chance.choice(USERS)
    doing = chance.choice(["send", "send", "send", "topic", "join", "leave", "invite", "kick", "ban", "unban", "see"])
    text = {"body": str(chance.random())}
    try:
        if doing == "send":
            room.add([NewEvent(chance.choice([ADMIN, user]), "m.room.message", text)] * chance.randint(1, 4))
        elif doing == "topic":
            room.set_state(ADMIN, "m.room.topic", {"topic": text["body"]})
        elif doing == "see":
            room.set_state(ADMIN, "m.room.history_visibility", {"history_visibility": chance.choice(VISIBILITIES)})
        elif doing in ("join", "leave"):
            getattr(room, doing)(user)
        elif doing == "unban":
            room.kick(ADMIN, user)
        else:
            getattr(room, doing)(ADMIN, user)
    except EventNotAllowed:
        return


@pytest.mark.parametrize("seed", range(4))
def test_what_is_known_and_what_is_new_make_what_is(seed):
    chance = random.Random(seed)
    rooms = [create_room(ADMIN, setup=RoomSetup(join_rule="public")) for _ in range(3)]
    clients = [Client(user) for user in USERS]
    for _ in range(ACTIONS):
        act(chance, rooms)
        for client in chance.sample(clients, chance.choice([0, 0, 0, 1, 2])):
            client.sync(limit=chance.choice([1, 2, 10]))
            client.check()
    for client in clients:
        client.sync(limit=10)
        client.check()
        assert len(client.seen) > 5
