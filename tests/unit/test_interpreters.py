"""Set-up finds the other Pythons of a machine, and takes none that does not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.session import PROJECT

MINOR = "{}.{}".format(*sys.version_info)


def find(which: str, home: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """``find_interpreter WHICH`` with that home and, before the system's folders, that PATH."""
    script = f"source {PROJECT}/script/_environment; find_interpreter {which}"
    environment = {"HOME": str(home), "PATH": f"{path}:/usr/bin:/bin"}
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def python_of_version(path: Path, version: str) -> Path:
    """Says that version of itself, as the question is put."""
    return program(path, f"echo {version}")


def test_a_command_that_is_switched_off_counts_as_not_found(tmp_path):
    """pyenv puts python3.99 on the PATH for every version that it has, and refuses to run those that are not chosen."""
    program(tmp_path / "shims" / "python3.99", "echo 'pyenv: python3.99: command not found' >&2; exit 127")
    done = find("3.99", tmp_path, tmp_path / "shims")
    assert (done.returncode != 0, done.stdout) == (True, "")


def test_the_interpreter_behind_a_switched_off_command_is_found(tmp_path):
    program(tmp_path / "shims" / "python3.99", "exit 127")
    real = python_of_version(tmp_path / ".pyenv" / "versions" / "3.99.1" / "bin" / "python3.99", "3.99.1")
    assert find("3.99", tmp_path, tmp_path / "shims").stdout == f"{real}\n"


def test_the_newest_is_taken_as_numbers_go(tmp_path):
    """3.99.10 is newer than 3.99.9."""
    python_of_version(tmp_path / "bin" / "python3.99", "3.99.9")
    newest = python_of_version(tmp_path / ".pyenv" / "versions" / "3.99.10" / "bin" / "python3.99", "3.99.10")
    python_of_version(tmp_path / ".pyenv" / "versions" / "3.99.2" / "bin" / "python3.99", "3.99.2")
    assert find("3.99", tmp_path, tmp_path / "bin").stdout == f"{newest}\n"


def test_this_interpreter_is_found_by_its_version(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / f"python{MINOR}").symlink_to(os.path.realpath(sys.executable))
    found = find(MINOR, tmp_path, tmp_path / "bin").stdout.strip()
    said = subprocess.run([found, "-V"], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"Python {MINOR}.")
