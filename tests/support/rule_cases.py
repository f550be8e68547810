"""The cases of the auth and state resolution vectors as the rules see them, and small states made for a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from state.resolution.auth_graph import AuthGraph
from state.resolution.resolve import resolve
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import auth_keys as keys_of
from state.rules.room_versions import room_version

ROOM = "!r:a.test"


@dataclass(frozen=True)
class RuledEvent:
    """An event with only what it holds."""

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    sender: str
    content: Mapping[str, Any]
    depth: int = 0
    origin_server_ts: int = 0
    prev_event_ids: tuple[str, ...] = ()
    auth_event_ids: tuple[str, ...] = ()
    redacts: str | None = None
    rejected_reason: str | None = None
    membership: str | None = field(default=None)


def ruled(event: Mapping[str, Any], event_id: str = "$new:a.test", room_id: str = ROOM, rejected: bool = False):
    """A federation event (or part of one) for the rules."""
    content = event.get("content", {})
    membership = content.get("membership") if event["type"] == "m.room.member" else None
    return RuledEvent(
        event_id=event_id,
        room_id=event.get("room_id", room_id),
        type=event["type"],
        state_key=event.get("state_key"),
        sender=event["sender"],
        content=content,
        depth=event.get("depth", 0),
        origin_server_ts=event.get("origin_server_ts", 0),
        prev_event_ids=_ids(event.get("prev_events", [])),
        auth_event_ids=_ids(event.get("auth_events", [])),
        redacts=event.get("redacts"),
        rejected_reason="rejected" if rejected else None,
        membership=membership if isinstance(membership, str) else None,
    )


def _ids(references):
    return tuple(entry if isinstance(entry, str) else entry[0] for entry in references)


# --- cases of the auth vectors ------------------------------------------------------------------------------------


def auth_keys(case):
    """The places that the selection names."""
    return keys_of(_event(case), room_version(case["room_version"]))


def auth_allowed(case):
    """Whether the event of the case passes."""
    return auth_refusal(case) is None


def auth_refusal(case):
    """Why the event of the case is refused by the state cut down to its keys."""
    state = {}
    for event in case["state"]:
        found = ruled(event, event["event_id"], case["event"]["room_id"])
        state[found.type, found.state_key] = found
    keys = {tuple(key) for key in case["auth_keys"]}
    rules = AuthRules(room_version(case["room_version"]))
    return rules.refusal(_event(case), {key: event for key, event in state.items() if key in keys})


def _event(case):
    return ruled(case["event"], case["event"]["event_id"], case["event"]["room_id"])


# --- made states --------------------------------------------------------------------------------------------------


class MadeState(dict):
    """A room's state made by hand: ``@c:a.test`` created it; memberships, levels and rules as wanted."""

    def __init__(self, version: str = "10", levels: dict[str, Any] | None = None, **create: Any) -> None:
        super().__init__()
        self.version = room_version(version)
        named = {} if self.version.newer_redactions else {"creator": "@c:a.test"}
        content = {"room_version": version, **named, **create}
        self.put("m.room.create", "", content, event_id="$create")
        self.room_id = "!create" if version == "12" else ROOM
        self.put("m.room.member", "@c:a.test", {"membership": "join"})
        if levels is not None:
            self.put("m.room.power_levels", "", levels)

    def put(self, event_type, state_key, content, sender="@c:a.test", event_id=None):
        parts = {"type": event_type, "state_key": state_key, "sender": sender, "content": content}
        self[event_type, state_key] = ruled(parts, event_id or f"${event_type}|{state_key}")
        return self

    def member(self, user, membership):
        return self.put("m.room.member", user, {"membership": membership}, sender=user)

    def join_rule(self, rule):
        return self.put("m.room.join_rules", "", {"join_rule": rule})

    def refusal(self, parts: Mapping[str, Any], signed_by=None):
        """Why an event of these parts may not stand on this state."""
        rules = AuthRules(self.version, signed_by) if signed_by else AuthRules(self.version)
        return rules.refusal(ruled({"content": {}, "prev_events": ["$x"], **parts}, room_id=self.room_id), self)

    def change(self, sender, target, membership, signed_by=None, **content):
        """Why this membership change is refused."""
        parts = {"type": "m.room.member", "state_key": target, "sender": sender}
        return self.refusal({**parts, "content": {"membership": membership, **content}}, signed_by)


# --- cases of the state resolution vectors ------------------------------------------------------------------------


class ResolutionCase:
    """The events of a case, ready to resolve."""

    def __init__(self, version: str, events) -> None:
        room_id = next(e["pdu"]["room_id"] for e in events if "room_id" in e["pdu"])
        self.events = {e["event_id"]: ruled(e["pdu"], e["event_id"], room_id, e.get("rejected", False)) for e in events}
        create = next(event.event_id for event in self.events.values() if event.type == "m.room.create")
        self.rules = AuthRules(room_version(version))
        self.graph = AuthGraph(self.events, self.rules.version, create)

    def state(self, event_ids):
        """A state map of these events."""
        return {(self.events[e].type, self.events[e].state_key): e for e in event_ids}

    def resolve(self, state_sets):
        """The resolution of states given as lists of event IDs."""
        return resolve(self.rules, self.graph, [self.state(event_ids) for event_ids in state_sets])

    def states_after(self):
        """Event -> state after it, for events whose references point backwards."""
        after = {}
        for event in self.events.values():
            befores = [after[prev] for prev in event.prev_event_ids if prev in after]
            state = resolve(self.rules, self.graph, befores) if befores else {}
            if event.state_key is not None and event.rejected_reason is None:
                state = {**state, (event.type, event.state_key): event.event_id}
            after[event.event_id] = state
        return after


def resolve_state(version, events, state_sets):
    """The IDs of the resolved state."""
    return ResolutionCase(version, events).resolve(state_sets).values()


def state_after(version, events):
    """Event -> the IDs of the state after it."""
    return {event_id: state.values() for event_id, state in ResolutionCase(version, events).states_after().items()}
