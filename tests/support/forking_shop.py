"""A shop whose processes are forked from one that has loaded Django and the shop: a start costs milliseconds."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.support.shop import Shop
from tests.support.waiting import DEADLINE_SECONDS, wait_until

__all__ = ["Forked", "ForkingShop"]

#: Reads a line for each process: its code, and the file that says how it ended. Answers with the number of the process.
_FORKS = """
import json, os, signal, sys, traceback
import django
django.setup()
from streams.follow.handlers import load_handlers
load_handlers()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    code, end = json.loads(line)
    if number := os.fork():
        print(number, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(end + ".log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1), os.dup2(log, 2)
    try:
        exec(code, {"__name__": "__main__"})
        said = "ok"
    except BaseException:
        said = traceback.format_exc()
    with open(end + "~", "w") as file:
        file.write(said)
    os.rename(end + "~", end)
    os._exit(0)
"""


@dataclass(frozen=True)
class Forked:
    """A process of the shop."""

    pid: int
    end: Path

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> None:
        """Waits for its end, which must be a good one."""
        wait_until(self.end.exists, 4 * DEADLINE_SECONDS)
        said = self.end.read_text()
        assert said == "ok", said + self.end.with_name(f"{self.end.name}.log").read_text()[-5_000:]


class ForkingShop(Shop):
    """The shop. ``close`` kills its processes."""

    def __init__(self, folder: Path, database_url: str, given: Mapping[str, str]) -> None:
        super().__init__(folder, database_url, given)
        self.environment["DJANGO_SETTINGS_MODULE"] = "settings"
        self._forking = self.start("-c", _FORKS)
        self._numbers = count()
        self._forked: list[Forked] = []

    def fork(self, code: str) -> Forked:
        """Begins to execute the code."""
        end = self.folder / f"end-{next(self._numbers)}"
        assert self._forking.stdin is not None and self._forking.stdout is not None
        self._forking.stdin.write(json.dumps([code, str(end)]) + "\n")
        self._forking.stdin.flush()
        self._forked.append(Forked(int(self._forking.stdout.readline()), end))
        return self._forked[-1]

    def do(self, code: str) -> None:
        """Executes the code to its end."""
        self.fork(code).ended()

    def kill_all(self) -> None:
        """Kills the processes that still run."""
        while self._forked:
            if not (forked := self._forked.pop()).end.exists():
                forked.kill()

    def close(self) -> None:
        self.kill_all()
        self._forking.communicate()
