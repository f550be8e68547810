"""A process that runs the reader ``r`` with a handler whose effects are rows, and may kill itself at a chosen instruction.

    python -m tests.support.handler_process POINT FOLDER [runhandlers options]

POINT: ``never``, or where it kills itself, once (the file FOLDER/killed says that it has): ``effect`` (after the effect, before
the cursor), ``cursor`` (after the cursor, before the commit), ``commit`` (after the commit).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
django.setup()

from django.core.management import execute_from_command_line  # noqa: E402

from streams.follow import Begin, Chunk, OnFailure, View, delivery, handles  # noqa: E402
from tests.support.effects import take  # noqa: E402

POINT, FOLDER = sys.argv[1], Path(sys.argv[2])
chunks = 0


def die(point: str) -> None:
    """As ``kill -9`` from outside would, at this very instruction; in the third chunk, and once."""
    marker = FOLDER / "killed"
    if point == POINT and chunks >= 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@handles("caches", reader="r", view=View.LINEAR, begin=Begin.OLDEST, chunk_rows=5)
def handle(chunk: Chunk) -> None:
    """The effect."""
    global chunks  # noqa: PLW0603 - one process, one handler
    chunks += 1
    take(chunk)
    die("effect")


@handles("caches", reader="poisoned", begin=Begin.OLDEST, on_failure=OnFailure.PARK, attempts=1)
def refuse(chunk: Chunk) -> None:
    """Takes nothing while FOLDER/poison is there."""
    if (FOLDER / "poison").exists():
        raise ValueError("poison")
    take(chunk, "poisoned")


@handles("caches", reader="late")
def take_new(chunk: Chunk) -> None:
    """The effect, of the facts that come from now on."""
    take(chunk, "late")


_move, _commit = delivery.move_cursor, delivery.Delivery._move


def move_and_die(*arguments):
    """Move the cursor, then die before the commit."""
    _move(*arguments)
    die("cursor")


def commit_and_die(self, *arguments):
    """Commit, then die."""
    _commit(self, *arguments)
    die("commit")


delivery.move_cursor = move_and_die
delivery.Delivery._move = commit_and_die
if __name__ == "__main__":
    sys.argv = ["manage.py", *sys.argv[3:]]
    execute_from_command_line(sys.argv)
