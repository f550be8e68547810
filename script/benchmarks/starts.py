"""CPU of a start: `manage.py help`, `health` and `streams`, over `help` of a bare Django project in the same run.

Each command runs in a fresh interpreter, in turns. CPU is that of its process alone, with all modules compiled before.
The bare project has the apps of `startproject` and PostgreSQL, and so the models of Django's own apps.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from script.benchmarks.report import Report, median_ratio, rounds

PROJECT = Path(__file__).resolve().parents[2]
ROUNDS = 7
BARE = "bare Django: help"
COMMANDS = {"help": 1.45, "health": 2.2, "streams": 2.2}
"""Command -> the highest ratio to bare Django's ``help``."""
_BARE_MANAGE = """
import sys
from django.conf import settings
from django.core.management import execute_from_command_line

names = ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
settings.configure(
    INSTALLED_APPS=[f"django.contrib.{name}" for name in names],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}},
)
execute_from_command_line(sys.argv)
"""


class Starts:
    """Runs commands with a cache of compiled modules of their own, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._bare = folder / "manage.py"
        self._bare.write_text(_BARE_MANAGE)
        self._environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def cpu(self, command: str) -> float:
        """Returns the milliseconds of CPU of one start."""
        program = self._bare if command == BARE else PROJECT / "manage.py"
        given = [sys.executable, str(program), "help" if command == BARE else command]
        running = subprocess.Popen(given, cwd=PROJECT, env=self._environment, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        if running.returncode not in (0, 1):  # 1: something of the site is wrong, which `health` tells
            raise RuntimeError(f"{command} ended with status {running.returncode}")
        return (used.ru_utime + used.ru_stime) * 1000


def main() -> None:
    """Measures all commands in turns."""
    report = Report("starts", "milliseconds of CPU until a command has ended")
    with tempfile.TemporaryDirectory(prefix="replsite-starts-") as folder:
        starts = Starts(Path(folder))
        measures = {name: lambda name=name: starts.cpu(name) for name in (BARE, *COMMANDS)}
        rounds(1, measures)  # compiles the modules
        found = rounds(ROUNDS, measures)
    for name, limit in COMMANDS.items():
        ratio = median_ratio(found[name], found[BARE])
        cpu, bare = statistics.median(found[name]), statistics.median(found[BARE])
        report.add(command=name, cpu=cpu, bare=bare, ratio=ratio, limit=limit, ok="yes" if ratio <= limit else "NO")
    report.finish()
