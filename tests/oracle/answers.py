"""The rooms of ``tests/data/rooms`` as our rules see them, beside the real server's answers."""

from __future__ import annotations

import json
from functools import cache

from events.format.parsing import ParsedEvent, parse_line
from tests.support.room_data import event_lines, oracle
from tests.support.room_results import RoomResult, computed

StateKey = tuple[str, str]


def parsed(room: str, told: bool = True) -> list[ParsedEvent]:
    """The events of a room, the same ones each time; with ``told`` false nothing says what was rejected or soft-failed."""
    return list(_parsed(room, told))


@cache
def _parsed(room: str, told: bool) -> tuple[ParsedEvent, ...]:
    if told:
        return tuple(map(parse_line, event_lines(room)))
    found = []
    for line in event_lines(room):
        value = json.loads(line)
        del value["rejected_reason"], value["soft_failed"]
        found.append(parse_line(json.dumps(value).encode()))
    return tuple(found)


def history(room: str, told: bool = True) -> RoomResult:
    """The rows of a room."""
    return computed(parsed(room, told))


class OurStates:
    """Full states from the rows of a result alone, as a reader of the tables finds them."""

    def __init__(self, result: RoomResult) -> None:
        self.group_of = dict(result.event_groups)
        self.prev = {group: prev for group, prev, *_ in result.groups}
        self._deltas: dict[int, dict[StateKey, str | None]] = {}
        for _, group, event_type, state_key, event_id in result.group_deltas:
            self._deltas.setdefault(group, {})[event_type, state_key] = event_id

    def of_group(self, group: int | None) -> dict[StateKey, str]:
        found: dict[StateKey, str | None] = {}
        while group is not None:
            for key, event_id in self._deltas.get(group, {}).items():
                found.setdefault(key, event_id)
            group = self.prev[group]
        return {key: event_id for key, event_id in found.items() if event_id is not None}

    def after(self, event_id: str) -> dict[StateKey, str]:
        return self.of_group(self.group_of[event_id])


class TheirStates:
    """The real server's states by its groups."""

    def __init__(self, room: str) -> None:
        rows = oracle(room, "state_groups")
        self.group_of = {row["event_id"]: row["state_group"] for row in rows if row["kind"] == "event"}
        self._groups = {row["state_group"]: row for row in rows if row["kind"] == "group"}

    def of_group(self, group: int | None) -> dict[StateKey, str]:
        found: dict[StateKey, str] = {}
        while group is not None:
            for event_type, state_key, event_id in self._groups[group]["delta"]:
                found.setdefault((event_type, state_key), event_id)
            group = self._groups[group]["prev_group"]
        return found

    def after(self, event_id: str) -> dict[StateKey, str] | None:
        group = self.group_of[event_id]
        return None if group is None else self.of_group(group)

    def answer(self, row: dict) -> dict[StateKey, str]:
        """What a row of the resolution file says."""
        if row["resolved"] is not None:
            return {(event_type, state_key): event_id for event_type, state_key, event_id in row["resolved"]}
        found = self.of_group(min(row["state_groups"]))
        for event_type, state_key, event_id in row["resolved_diff_to_first"]["set"]:
            found[event_type, state_key] = event_id
        for event_type, state_key in row["resolved_diff_to_first"]["unset"]:
            del found[event_type, state_key]
        return found
