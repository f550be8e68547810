"""What changed from one page to the next: the smallest message that turns the old one into the new one (pure).

*Old page + changes = new page*, always; a test holds this for pages of every kind. Without an old page everything is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replsite.dashboard.page import Group, Page, Row

__all__ = ["changes"]


def changes(old: Page | None, new: Page) -> dict[str, Any]:
    """``as_of``, and of ``health``, ``streams`` and ``readers`` what differs.

    A table's change is ``{"order"?: [group keys], "groups"?: {key: {"head"?: row, "order"?: [row keys], "rows"?: {key: row}}}}``:
    orders only when they differ, rows only when any of their cells does.
    """
    found: dict[str, Any] = {"as_of": new["as_of"]}
    if old is None or old["health"] != new["health"]:
        found["health"] = new["health"]
    for name, before, after in (
        ("streams", old["streams"] if old else None, new["streams"]),
        ("readers", old["readers"] if old else None, new["readers"]),
    ):
        if table := _table(before, after):
            found[name] = table
    return found


def _table(before: Sequence[Group] | None, after: Sequence[Group]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if before is None or [group["key"] for group in before] != [group["key"] for group in after]:
        found["order"] = [group["key"] for group in after]
    known = {group["key"]: group for group in before or ()}
    groups = {group["key"]: change for group in after if (change := _group(known.get(group["key"]), group))}
    return found | {"groups": groups} if groups else found


def _group(before: Group | None, after: Group) -> dict[str, Any]:
    if before is after:
        return {}
    found: dict[str, Any] = {}
    if before is None or before["head"] != after["head"]:
        found["head"] = after["head"]
    if before is None or [row["key"] for row in before["rows"]] != [row["key"] for row in after["rows"]]:
        found["order"] = [row["key"] for row in after["rows"]]
    known: Mapping[str, Row] = {row["key"]: row for row in before["rows"]} if before else {}
    rows = {row["key"]: row for row in after["rows"] if known.get(row["key"]) != row}
    return found | {"rows": rows} if rows else found
