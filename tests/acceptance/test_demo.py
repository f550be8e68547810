"""The demo ended in the middle of a step: nothing of it is left, and its status says that not everything was checked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.session import PROJECT
from tests.support.waiting import wait_until

_MARK = "REPLSITE_TEST_OF_THE_DEMO"


class Demonstration:
    """``script/demo --once`` without its set-up, in a group of processes as a terminal makes one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.log = folder / "log"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(mode=0o755)
        env = {**os.environ, "TMPDIR": str(self.temporary), _MARK: str(folder)}
        env.pop("DATABASE_URL", None)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "script.demonstration", "--once"],
                cwd=PROJECT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def has_said(self, words: str) -> bool:
        return words in self.log.read_text() or self.process.poll() is not None

    def living(self) -> list[str]:
        """Its processes, the demo itself included."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


@pytest.fixture
def demonstration(tmp_path: Path) -> Iterator[Demonstration]:
    running = Demonstration(tmp_path)
    yield running
    if running.process.poll() is None:
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait(10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "by_terminal"), [("database:", False), ("site:", True), ("import:", False), ("import:", True)]
)
def test_an_interrupted_demo_leaves_nothing_and_is_no_success(demonstration, words, by_terminal):
    wait_until(lambda: demonstration.has_said(words), 120, words)
    if by_terminal:
        os.killpg(demonstration.process.pid, signal.SIGINT)
    else:
        demonstration.process.terminate()
    assert demonstration.process.wait(60) == 130, demonstration.log.read_text()
    wait_until(lambda: not demonstration.living(), 20, "all its processes have ended")
    assert not list(demonstration.temporary.glob("replsite-demo-*"))
