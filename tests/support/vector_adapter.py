"""Every rule behind the function names that a player of the test vectors asks for.

Anybody with more vectors of these kinds can play them against this project;
``tests/unit/tests/support/test_vector_adapter.py`` plays those that are shipped.
"""

from __future__ import annotations

from typing import Any

from events.format import hashes, redaction
from events.visibility.rule import Answer, for_client, for_server
from events.visibility.viewer import Viewer, rule_input
from state.rules.room_versions import room_version
from tests.support.rule_cases import auth_allowed, auth_keys, resolve_state, state_after
from tests.unit.events.visibility.test_rule import SPECIAL, sight
from tests.unit.events.visibility.test_viewer import steps
from tests.unit.streams.core.test_tokens import OPERATIONS
from tests.unit.tests.oracles.test_purge_plan import plan_of

__all__ = [
    "auth_allowed",
    "auth_keys",
    "content_hash",
    "event_id",
    "purge",
    "redact",
    "reference_hash",
    "resolve_state",
    "state_after",
    "token",
    "visible_timeline",
    "visible_to_client",
    "visible_to_server",
]


def event_id(version: str, event: dict[str, Any]) -> str:
    return hashes.event_id(event, room_version(version))


def reference_hash(version: str, event: dict[str, Any]) -> str:
    return hashes.reference_hash(event, room_version(version))


def content_hash(version: str, event: dict[str, Any]) -> str:
    return hashes.content_hash(event, room_version(version))


def redact(version: str, event: dict[str, Any]) -> dict[str, Any]:
    return redaction.prune(event, room_version(version))


def visible_to_client(case: dict[str, Any]) -> str:
    return for_client(SPECIAL[case["name"]] if case["kind"] == "special" else sight(case)).answer.value


def visible_to_server(case: dict[str, Any]) -> str:
    verdict = for_server(
        case["visibility"],
        case["memberships_of_target_server"],
        sender_erased=case["sender_erased"],
        state_known=not case["in_partial_state_and_remote"],
    )
    return "full" if verdict.answer is Answer.FULL else "hidden_or_redacted"


def visible_timeline(case: dict[str, Any], viewer: str, peeking: bool) -> dict[str, list[int]]:
    looks = Viewer(viewer, peeking, erased=frozenset(case["erased_senders"]))
    found: dict[str, list[int]] = {"full": [], "redacted": [], "hidden": []}
    for number, (event, before, after) in enumerate(steps(case)):
        found[for_client(rule_input(event, looks, before, after)).answer.value].append(number)
    return {kind: found[kind] for kind in ("full", "redacted")}


def token(case: dict[str, Any]) -> dict[str, Any]:
    return OPERATIONS[case["op"]](case)


def purge(case: dict[str, Any]) -> dict[str, Any]:
    plan = plan_of(case)
    if plan is None:
        return {"refused": True}
    return {
        "deleted": sorted(plan.deleted),
        "became_outlier": sorted(plan.become_outliers),
        "backward_extremities": sorted(plan.gaps),
        "forward_extremities": sorted(plan.extremities),
        "min_depth": plan.min_depth,
        "state_groups_looked_at": sorted(plan.groups_looked_at),
        "state_groups_deleted": sorted(plan.groups_deleted),
        "state_groups_to_make_full": sorted(plan.groups_made_full),
    }
