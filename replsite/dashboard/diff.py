"""What changed from one page to the next: the smallest message that turns the old one into the new one (pure).

*Old page + changes = new page*, always; a test holds this for pages of every kind. Without an old page everything is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from replsite.dashboard.cells import Group, Page, Row

__all__ = ["TABLES", "changes", "table_changes"]

_REST: tuple[Literal["severity", "id", "command"], ...] = ("severity", "id", "command")
TABLES: tuple[Literal["streams", "readers", "jobs", "storage", "workers"], ...] = (
    "streams",
    "readers",
    "jobs",
    "storage",
    "workers",
)


def changes(old: Page | None, new: Page) -> dict[str, Any]:
    """``as_of``, and of ``storage_at``, ``health``, ``summary`` and of the tables what differs.

    A table's change is ``{"order"?: [group keys], "groups"?: {key: {"head"?: row, "order"?: [row keys], "rows"?: {key: row}}}}``:
    orders only when they differ, rows only when they do. Of a row that was there, only what differs is sent: ``some`` of its
    cells by their number, and its severity.
    """
    found: dict[str, Any] = {"as_of": new["as_of"]}
    if old is None or old["storage_at"] != new["storage_at"]:
        found["storage_at"] = new["storage_at"]
    if old is None or old["health"] != new["health"]:
        found["health"] = new["health"]
    if old is None or old["summary"] != new["summary"]:
        found["summary"] = new["summary"]
    for name in TABLES:
        if table := table_changes(old[name] if old else None, new[name]):
            found[name] = table
    return found


def table_changes(before: Sequence[Group] | None, after: Sequence[Group]) -> dict[str, Any]:
    """What turns one table into the other; without the old one everything is new."""
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
        found["head"] = _row(before["head"], after["head"])
    if _keys(before["rows"]) != _keys(after["rows"]):
        found["order"] = _keys(after["rows"])
    if rows := _changed_rows(before["rows"], after["rows"]):
        found["rows"] = rows
    return found


def _keys(members: Sequence[Group] | Sequence[Row]) -> list[str]:
    return [member["key"] for member in members]


def _changed_rows(before: Sequence[Row], after: Sequence[Row]) -> dict[str, Any]:
    known = {row["key"]: row for row in before}
    return {row["key"]: _row(known.get(row["key"]), row) for row in after if known.get(row["key"]) != row}


def _row(before: Row | None, after: Row) -> Mapping[str, Any]:
    """The row, or what differs in it while it is of the same form."""
    if before is None or before.keys() != after.keys() or len(before["cells"]) != len(after["cells"]):
        return after
    pairs = zip(before["cells"], after["cells"], strict=True)
    some = {str(number): new for number, (old, new) in enumerate(pairs) if old != new}
    rest: dict[str, Any] = {name: after[name] for name in _REST if name in after and before[name] != after[name]}
    return {"some": some, **rest}
