"""A client of ``sync`` that keeps what it is told: what it holds after an answer must be what a fresh one would be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from events.sync.answers import SyncRoom
from events.sync.providers import Key
from events.sync.sync import SyncAnswer, sync

__all__ = ["SyncClient", "check_matches"]


class SyncClient:
    """Holds streams by name, the state of joined rooms, and invites."""

    def __init__(self, user_id: str) -> None:
        self.user_id = user_id
        self.token: str | None = None
        self.streams: dict[str, dict[Key, Any]] = {}
        self.rooms: dict[str, dict[tuple[str, str], str]] = {}
        self.pending: dict[str, str] = {}
        self.events: list[str] = []
        """Event IDs in the order in which they were told."""
        self.sync()

    def sync(self, timeout_seconds: float = 0.0) -> SyncAnswer:
        """Ask, and keep what is told."""
        answer = sync(self.user_id, self.token, timeout_seconds, events=50)
        self.take(answer)
        return answer

    def take(self, answer: SyncAnswer) -> None:
        """Keep what an answer tells."""
        self.token = answer.next_batch
        if answer.full:
            self.streams, self.rooms, self.pending = {}, {}, {}
        for name, changes in answer.streams.items():
            self.streams[name] = changes.apply_to(self.streams.get(name, {}))
        for room in answer.rooms.joined:
            self._take_room(room)
            self.pending.pop(room.room_id, None)
        for room in answer.rooms.left:
            self.rooms.pop(room.room_id, None)
            self.pending.pop(room.room_id, None)
        for pending in (*answer.rooms.invited, *answer.rooms.knocked):
            self.pending[pending.room_id] = pending.membership
            self.rooms.pop(pending.room_id, None)

    def _take_room(self, room: SyncRoom) -> None:
        state = {} if room.whole else self.rooms.setdefault(room.room_id, {})
        for event in (*room.state, *room.timeline):
            if event.state_key is not None:
                state[event.type, event.state_key] = event.event_id
        for key in room.removed:
            state.pop(key, None)
        self.rooms[room.room_id] = state
        self.events += [event.event_id for event in room.timeline]

    def held(self) -> dict[str, Any]:
        """What it holds, to be compared; streams without anything left out."""
        streams = {name: values for name, values in self.streams.items() if values}
        return {"streams": streams, "rooms": self.rooms, "pending": self.pending}


def check_matches(user_id: str, *acts: Callable[[], object]) -> list[SyncAnswer]:
    """Fetch, act, fetch what is new and apply it, and compare with a fresh one, after each act; the answers to the acts."""
    client, answers = SyncClient(user_id), []
    for act in acts:
        act()
        answers.append(client.sync())
        assert client.held() == SyncClient(user_id).held()
        assert not client.sync(), "something was told twice"
    return answers
