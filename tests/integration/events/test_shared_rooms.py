"""Rooms and contacts gained and lost between two positions are those of the memberships at each of them."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from django.db import connection

from events.models import CurrentStateDelta
from events.notifier.joined_rooms import joined_rooms, joined_rooms_of
from events.sending.send import create_room
from events.sync.shared_rooms import Known, SharedRooms, shared_rooms_between
from streams.core.tokens import VectorToken
from tests.support.effort import examples
from tests.support.syncing import here

pytestmark = pytest.mark.django_db
ANN = "@ann:site"
USERS = [ANN, *(f"@user-{number}:site" for number in range(5))]


def of_the_memberships(cursor, user: str, since: VectorToken, now: VectorToken) -> SharedRooms:
    """The answer by all memberships of all users at each of the two positions."""
    others = set(USERS) - {user}
    then, rooms = joined_rooms(cursor, user, since), joined_rooms(cursor, user, now)
    met_then, met_now = (frozenset(joined_rooms_of(cursor, others, at, of)) for at, of in ((since, then), (now, rooms)))
    return SharedRooms(rooms, rooms - then, then - rooms, met_now - met_then, met_then - met_now)


@pytest.mark.parametrize("seed", range(examples(4)))
def test_what_was_gained_and_lost_is_that_of_the_memberships(seed):
    chance = random.Random(seed)
    rooms = [create_room(ANN) for _ in range(4)]
    joined = {(ANN, room.room_id) for room in rooms}
    places = [here()]
    for _ in range(25):
        user, room = chance.choice(USERS), chance.choice(rooms)
        key = user, room.room_id
        if key not in joined:
            room.join(user)
            joined.add(key)
        elif len([one for one in joined if one[1] == room.room_id]) > 1:
            room.leave(user)
            joined.discard(key)
        places.append(here())
    with connection.cursor() as cursor:
        pairs = chance.sample(list(combinations(places, 2)), 40)
        for since, now in [*pairs, (places[-1], places[-1])]:
            changed = set(
                CurrentStateDelta.objects.filter(stream_ordering__gt=since.base).values_list("room_id", flat=True)
            )
            for user in chance.sample(USERS, 2):
                expected = of_the_memberships(cursor, user, since, now)
                later = joined_rooms(cursor, user, places[-1])
                assert shared_rooms_between(cursor, user, since, now) == expected
                known = Known(later, later & changed)
                assert shared_rooms_between(cursor, user, since, now, known) == expected
