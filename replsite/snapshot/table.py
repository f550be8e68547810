"""What the rows of all tables have in common (pure).

A row is filled by one query, completed by ``replsite.snapshot.take``, and judged by ``replsite.snapshot.verdicts``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from replsite.status.words import Severity, Verdict

__all__ = ["HIDDEN", "UNJUDGED", "as_json", "worst_first"]

UNJUDGED = Verdict("", Severity.FINE, "")
HIDDEN = {"hidden": True}
"""The metadata of a field that is not part of the row's JSON."""


def worst_first(rows: Iterable[Any]) -> tuple[Any, ...]:
    """Sorts rows by severity, highest first. Equal ones keep their order."""
    return tuple(sorted(rows, key=lambda row: -row.status.severity))


def as_json(value: Any) -> Any:
    """Returns rows as plain JSON values. Times are ISO 8601 in UTC, severities are lower-case names."""
    if is_dataclass(value):
        return {one.name: as_json(getattr(value, one.name)) for one in fields(value) if not one.metadata}
    if isinstance(value, dict):
        return {key: as_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(one) for one in value]
    if isinstance(value, Severity):
        return value.name.lower()
    return value.isoformat() if isinstance(value, datetime) else value
