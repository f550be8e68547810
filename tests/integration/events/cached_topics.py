"""Cached functions that depend on rooms' state, for tests in several processes; run as a program, it answers lines on stdin.

``topic ROOM`` and ``name ROOM USER`` print what is cached, ``wait STREAM TOKEN`` waits for a stream, ``hits`` prints how many
answers were kept ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from events.models import CurrentState, Event, EventJson
from streams import registry
from tests.support.cached import cached
from tests.support.waiting import DEADLINE_SECONDS


def _said(room_id: str, event_type: str, state_key: str, name: str) -> str | None:
    """What the current state says, as readers see it: nothing where it is redacted."""
    entry = CurrentState.objects.filter(room_id=room_id, type=event_type, state_key=state_key).first()
    if entry is None or Event.objects.get(event_id=entry.event_id).redacted_by is not None:
        return None
    said: str | None = json.loads(bytes(EventJson.objects.get(event_id=entry.event_id).json))["content"].get(name)
    return said


@cached("topics_of_rooms", lambda room_id, user_ids: [(room_id,)])
def topic_of(room_id: str) -> str | None:
    return _said(room_id, "m.room.topic", "", "topic")


def _members(room_id: str, user_ids: Sequence[str]) -> list[tuple[str, str]]:
    return [(room_id, user_id) for user_id in user_ids]


@cached("memberships", _members)
def membership_of(room_id: str, user_id: str) -> str | None:
    return _said(room_id, "m.room.member", user_id, "membership")


@cached("reasons", _members)
def reason_of(room_id: str, user_id: str) -> str | None:
    return _said(room_id, "m.room.member", user_id, "reason")


def main() -> None:
    for line in sys.stdin:
        match line.split():
            case ["topic", room_id]:
                answer = str(topic_of(room_id))
            case ["membership", room_id, user_id]:
                answer = str(membership_of(room_id, user_id))
            case ["reason", room_id, user_id]:
                answer = str(reason_of(room_id, user_id))
            case ["wait", stream, token]:
                registry.get(stream).wait_for(int(token), DEADLINE_SECONDS)
                answer = "there"
            case ["hits"]:
                answer = str(sum(f.hits for f in (topic_of, membership_of, reason_of)))
            case _:
                answer = "?"
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
