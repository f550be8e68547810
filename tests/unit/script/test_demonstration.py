"""The data folder of a demo, and what is left in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

from replsite.status.expected_writers import expected_writers, wrong_expectations
from script.demonstration import Demo, _end_rest, _folder


def test_the_next_demo_begins_in_an_empty_folder_although_a_server_still_writes_there(tmp_path: Path, monkeypatch):
    """The database of a demo that was interrupted stops a moment later, and writes files until then."""
    monkeypatch.setenv("REPLSITE_DATA_DIR", str(tmp_path))
    old = tmp_path / "demo" / "postgres"
    old.mkdir(parents=True)
    for number in range(500):
        (old / f"left-{number}").touch()
    begun = threading.Event()

    def write() -> None:
        with suppress(FileNotFoundError):  # the folder was removed
            for number in range(5_000):
                (old / f"written-{number}").touch()
                begun.set()

    server = threading.Thread(target=write)
    with ExitStack() as stack:
        server.start()
        begun.wait()
        folder = _folder(False, stack)
        assert (folder, list(folder.iterdir())) == (tmp_path / "demo", [])
    server.join()


def test_the_writers_that_stay_are_expected_by_the_site(tmp_path: Path):
    started = []

    class Recorded(Demo):
        def manage(self, *arguments: str, **more: object) -> None:
            started.append((arguments[1], arguments[arguments.index("--instance") + 1]))

    with ExitStack() as stack:
        demo = Recorded(tmp_path, "", "", stack)
        demo.go_on()
        given = json.loads(demo.environment["REPLSITE_EXPECTED_WRITERS"])
    assert list(wrong_expectations(given)) == []
    expected = [(stream, writer) for stream, names in expected_writers(given).items() for writer in names]
    assert sorted(expected) == sorted(started) and len(started) == 2


def test_processes_that_parts_of_a_demo_left_have_ended_before_its_folder_is_removed(tmp_path: Path):
    """The JVM of a Spark that was interrupted made the folder again after it was removed."""
    folder = tmp_path / "demo"
    left = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        env={**os.environ, "REPLSITE_DATA_DIR": str(folder)},
        stdin=subprocess.PIPE,
    )
    ending = threading.Timer(0.2, left.stdin.close)
    ending.start()
    _end_rest(folder)
    assert left.poll() == 0, "it was waited for"
    ending.join()
