"""What changed from one page to the next: the smallest message that turns the old one into the new one (pure).

*Old page + changes = new page*, always; a test holds this for pages of every kind. Without an old page everything is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replsite.dashboard.page import Group, Page, Row

__all__ = ["changes"]


def changes(old: Page | None, new: Page) -> dict[str, Any]:
    """``as_of``, and of ``health`` and of the tables what differs.

    A table's change is ``{"order"?: [group keys], "groups"?: {key: {"head"?: row, "order"?: [row keys], "rows"?: {key: row}}}}``:
    orders only when they differ, rows only when any of their cells does.
    """
    found: dict[str, Any] = {"as_of": new["as_of"]}
    if old is None or old["health"] != new["health"]:
        found["health"] = new["health"]
    for name, before, after in (
        ("streams", old["streams"] if old else None, new["streams"]),
        ("readers", old["readers"] if old else None, new["readers"]),
        ("workers", old["workers"] if old else None, new["workers"]),
        ("jobs", old["jobs"] if old else None, new["jobs"]),
    ):
        if table := _table(before, after):
            found[name] = table
    return found


def _table(before: Sequence[Group] | None, after: Sequence[Group]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if before is None or _keys(before) != _keys(after):
        found["order"] = _keys(after)
    known = {group["key"]: group for group in before or ()}
    groups = {group["key"]: _group(known.get(group["key"]), group) for group in after}
    if changed := {key: change for key, change in groups.items() if change}:
        found["groups"] = changed
    return found


def _group(before: Group | None, after: Group) -> dict[str, Any]:
    if before is None:
        return {"head": after["head"], "order": _keys(after["rows"]), "rows": _changed_rows((), after["rows"])}
    found: dict[str, Any] = {}
    if before["head"] != after["head"]:
        found["head"] = after["head"]
    if _keys(before["rows"]) != _keys(after["rows"]):
        found["order"] = _keys(after["rows"])
    if rows := _changed_rows(before["rows"], after["rows"]):
        found["rows"] = rows
    return found


def _keys(members: Sequence[Group] | Sequence[Row]) -> list[str]:
    return [member["key"] for member in members]


def _changed_rows(before: Sequence[Row], after: Sequence[Row]) -> dict[str, Row]:
    known = {row["key"]: row for row in before}
    return {row["key"]: row for row in after if known.get(row["key"]) != row}
