"""Unit files as systemd reads them: sections, repeated keys, specifiers; no more than ours use."""

from __future__ import annotations

import shlex
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.deployment.places import FILES

FOLDER = FILES / "systemd"
CODE = "/opt/replsite/current"
START = ["/usr/bin/env", ".venv/bin/python", "manage.py"]


@dataclass(frozen=True)
class Unit:
    """One file; ``instance`` stands for ``%i``."""

    path: Path
    keys: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def name(self) -> str:
        return self.path.name

    def commands(self, instance: str, environment: dict[str, str]) -> list[list[str]]:
        """The words after ``manage.py`` of each ExecStart."""
        found = []
        for line in self.keys["ExecStart"]:
            typed = line.replace("%i", instance)
            for name, value in environment.items():
                typed = typed.replace(f"${{{name}}}", value)
            words = shlex.split(typed)
            assert words[:3] == START, line
            found.append(words[3:])
        return found

    def environment(self, instance: str) -> dict[str, str]:
        """What its own Environment lines set."""
        lines = [line.replace("%i", instance) for line in self.keys["Environment"]]
        return dict(line.split("=", 1) for line in lines)


def read(path: Path) -> Unit:
    unit = Unit(path)
    for line in path.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            unit.keys[key].append(value)
    return unit


def services() -> list[Unit]:
    return [read(path) for path in sorted(FOLDER.glob("*.service"))]
