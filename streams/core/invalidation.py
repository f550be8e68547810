"""Rows of the stream ``caches`` that stand for all values that depend on a room's current state (pure).

Their name is ``cs_cache_fake``. Their keys are a room and the users whose membership changed.
"""

from __future__ import annotations

from collections.abc import Iterable

#: The special name of all caches that depend on the current state of a room.
ROOM_STATE = "cs_cache_fake"
#: Most users that one row with the name ``ROOM_STATE`` has.
ROOM_STATE_USERS = 50


def room_state_keys(room_id: str, user_ids: Iterable[str]) -> list[list[str]]:
    """Returns the keys to write into the stream ``caches`` after a change of a room's state, one list for each row.

    ``user_ids`` are the users whose membership changed. One row has at most ``ROOM_STATE_USERS`` users.
    """
    users = list(user_ids)
    return [
        [room_id, *users[first : first + ROOM_STATE_USERS]] for first in range(0, max(len(users), 1), ROOM_STATE_USERS)
    ]
