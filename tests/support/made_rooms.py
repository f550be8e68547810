"""Small rooms made for a test: real, hashed events on any prev events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.sending.finish import finish_event
from state.rules.auth_selection import CREATE, auth_keys
from state.rules.room_versions import room_version

ALICE, BOB, EVE = "@alice:a.test", "@bob:b.test", "@eve:e.test"


class MadeRoom:
    """Makes events of one room; ``events`` has them in the order of making, the last is the default prev event.

    Usually they come with verdicts (accepted, unless flags say otherwise), so that a test need not care for the auth
    rules. With ``ruled`` they come without, and with proper auth events, from the state after their first prev event.
    """

    def __init__(self, version: str = "10", room_id: str = "!made:a.test", ruled: bool = False) -> None:
        self.version, self.room_id, self.ruled = version, room_id, ruled
        self.events: list[ParsedEvent] = []
        self._states: dict[str, dict[tuple[str, str], str]] = {}
        self.create = self.state("m.room.create", "", {"room_version": version, "creator": ALICE}, prev=[])
        self.room_id = self.create.room_id
        self.alice = self.member(ALICE, "join")

    def send(
        self,
        parts: dict[str, Any],
        prev: Sequence[ParsedEvent | str] | None = None,
        **flags: Any,
    ) -> ParsedEvent:
        """An event with these parts; ``flags`` are what a wrapper may say (outlier, rejected_reason, soft_failed, …)."""
        before = self.events[-1:] if prev is None else prev
        ids = [event if isinstance(event, str) else event.event_id for event in before]
        depth = 1 + max((event.depth for event in before if isinstance(event, ParsedEvent)), default=0)
        number = len(self.events)
        whole = {
            "sender": ALICE,
            "depth": depth,
            "origin_server_ts": 1_700_000_000_000 + number,
            "auth_events": [],
            "prev_events": ids,
            "content": {},
            **parts,
        }
        if self.version in ("1", "2"):  # IDs are chosen, references are pairs
            whole.setdefault("event_id", f"$made{number}:a.test")
            whole["prev_events"] = [e if isinstance(e, list) else [e, {}] for e in whole["prev_events"]]
        if not (self.version == "12" and parts["type"] == "m.room.create"):
            whole.setdefault("room_id", self.room_id)
        state = dict(self._states.get(ids[0], {})) if ids else {}
        if self.ruled and "auth_events" not in parts:
            whole["auth_events"] = self._auth_events(whole, state)
        given = {} if self.ruled else {"rejection_given": True, "soft_failure_given": True}
        event = replace(finish_event(whole, self.version), **{**given, **flags})
        if event.state_key is not None:
            state[event.type, event.state_key] = event.event_id
        self._states[event.event_id] = state
        self.events.append(event)
        return event

    def state_after(self, event_id: str) -> dict[tuple[str, str], str]:
        """The state after an event, as far as it follows from its first prev events: (type, state key) -> event."""
        return dict(self._states[event_id])

    def _auth_events(self, whole: dict[str, Any], state: dict[tuple[str, str], str]) -> list[Any]:
        draft = finish_event(whole, self.version)
        keys = auth_keys(draft, room_version(self.version))
        found = [state[key] for key in keys if key in state and not (self.version == "12" and key == CREATE)]
        return [[event_id, {}] for event_id in found] if self.version in ("1", "2") else found

    def message(self, prev: Sequence[Any] | None = None, sender: str = ALICE, **flags: Any) -> ParsedEvent:
        return self.send({"type": "m.room.message", "sender": sender, "content": {"body": "x"}}, prev, **flags)

    def state(
        self, event_type: str, state_key: str, content: dict[str, Any], prev: Sequence[Any] | None = None, **flags: Any
    ) -> ParsedEvent:
        return self.send({"type": event_type, "state_key": state_key, "content": content}, prev, **flags)

    def member(
        self, user: str, membership: str, prev: Sequence[Any] | None = None, sender: str | None = None, **flags: Any
    ) -> ParsedEvent:
        parts = {
            "type": "m.room.member",
            "state_key": user,
            "sender": sender or user,
            "content": {"membership": membership},
        }
        return self.send(parts, prev, **flags)

    def topic(self, text: str, prev: Sequence[Any] | None = None, **flags: Any) -> ParsedEvent:
        return self.state("m.room.topic", "", {"topic": text}, prev, **flags)

    def redaction(self, target: ParsedEvent, sender: str = ALICE, **flags: Any) -> ParsedEvent:
        parts: dict[str, Any] = {"type": "m.room.redaction", "sender": sender, "redacts": target.event_id}
        if self.version in ("11", "12"):
            parts |= {"content": {"redacts": parts.pop("redacts")}}
        return self.send(parts, **flags)


def public_room(version: str = "10", room_id: str = "!made:a.test") -> MadeRoom:
    """A room with levels and a join rule, in which everybody is judged by the rules."""
    made = MadeRoom(version, room_id, ruled=True)
    made.state("m.room.power_levels", "", {"users": {} if version == "12" else {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    return made
