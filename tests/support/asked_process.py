"""A process of a test that answers a line for each line it is given."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.waiting import DEADLINE_SECONDS
from tests.support.warm_start import WARM

__all__ = ["AskedProcess", "asked_process"]

_PROGRAM = """
import sys
import django

django.setup()
from importlib import import_module
from streams.writing.name import use_instance

use_instance(sys.argv[1])
import_module(sys.argv[2]).main()
"""


class AskedProcess:
    """The other end of the process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, *words: object) -> str:
        """Returns the answer."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def asked_process(module: str, database_url: str | None, instance: str, **env: str) -> Iterator[AskedProcess]:
    """Runs ``main`` of the module in a process of that instance name, on the test database, inside the block.

    Without ``database_url`` it uses the embedded server of its data folder.
    """
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    process = WARM.popen(
        ("-c", _PROGRAM, instance, module),
        {**kept, **({} if database_url is None else {"DATABASE_URL": database_url}), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin and process.stdout
    try:
        yield AskedProcess(process)
        process.stdin.close()
        process.wait(DEADLINE_SECONDS)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
