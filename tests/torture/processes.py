"""Handles of processes that were started here: killed, stopped and waited for by descriptor, never by name or number."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.session import PROJECT

__all__ = ["Nursery", "Running"]


@dataclass(slots=True)
class Running:
    """A process that runs, or ran."""

    role: str
    name: str
    number: int
    stderr: Path
    descriptor: int
    was_told_to_end: bool = False

    def alive(self) -> bool:
        return self.descriptor >= 0 and not select.select([self.descriptor], [], [], 0)[0]

    def send(self, number: signal.Signals) -> None:
        """A signal; to one that is gone it means nothing."""
        self.was_told_to_end |= number in (signal.SIGKILL, signal.SIGTERM)
        if self.alive():
            with suppress(ProcessLookupError):  # it ended a moment ago
                signal.pidfd_send_signal(self.descriptor, number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        return self.descriptor < 0 or bool(select.select([self.descriptor], [], [], max(seconds, 0))[0])

    def close(self) -> None:
        """Give the descriptor back; the process must have ended."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def last_words(self) -> str:
        return self.stderr.read_text()[-2000:] if self.stderr.exists() else ""


class Nursery:
    """The process that forks all others."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._folder = folder
        self._started = 0
        self._stderr = (folder / "nursery.err").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.nursery"],
            cwd=PROJECT,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def start(self, role: str, name: str, orders: Any) -> Running:
        """Start a process of that role; ``orders`` is a dataclass or a dictionary."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._started += 1
        stderr = self._folder / f"{name}.err"
        given = orders if isinstance(orders, dict) else asdict(orders)
        self._process.stdin.write(json.dumps({"role": role, "orders": given, "stderr": str(stderr)}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the nursery ended: {(self._folder / 'nursery.err').read_text()[-2000:]}")
        number = int(answer)
        try:
            descriptor = os.pidfd_open(number)
        except ProcessLookupError:  # it ended at once
            descriptor = -1
        return Running(role, name, number, stderr, descriptor)

    def close(self) -> None:
        """Everything that still runs is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        deadline = time.monotonic() + 10
        try:
            self._process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()
