#!/usr/bin/env python
"""Prints every event that the code logs, with its level and place: ``log.info("a.b")`` and ``Condition(log, …)``.

The events are found in the source. ``tests/docs/test_logs_page.py`` compares ``docs/reference/logs.md`` with them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parent.parent
ROOMS = ("replsite", "pipeline", "events", "state", "streams")
_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


class LogEvent(NamedTuple):
    """A call in the code that logs an event."""

    name: str
    level: str
    file: str
    line: int


def log_events(project: Path = PROJECT) -> list[LogEvent]:
    """Returns all calls that log an event, by name. Raises ``ValueError`` if a name is not a plain text in the code."""
    found = [event for room in ROOMS for path in (project / room).rglob("*.py") for event in _of(path, project)]
    return sorted(found)


def _of(path: Path, project: Path) -> Iterator[LogEvent]:
    where = str(path.relative_to(project))
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        if _is_condition(node):
            # Condition(log, begins, ends, lasts) logs the second event as an info, and the others as warnings.
            for argument, level in zip(node.args[1:4], ("warning", "info", "warning"), strict=False):
                yield LogEvent(_text(argument, where), level, where, node.lineno)
        elif _is_log(node.func):
            level = node.func.attr  # type: ignore[attr-defined]
            yield LogEvent(_text(node.args[0], where), "error" if level == "exception" else level, where, node.lineno)


def _is_condition(node: ast.Call) -> bool:
    first = node.args[0] if len(node.args) >= 3 else None
    is_ours = isinstance(node.func, ast.Name) and node.func.id == "Condition"
    return is_ours and isinstance(first, ast.Name) and first.id == "log"


def _is_log(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in _LEVELS:
        return False
    return isinstance(function.value, ast.Name) and function.value.id == "log"


def _text(node: ast.expr, where: str) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError(f"{where}:{node.lineno}: the name of an event has to stand in the call")


if __name__ == "__main__":
    for event in log_events():
        sys.stdout.write(f"{event.name} {event.level} {event.file}:{event.line}\n")
