"""Asks before data is deleted: one rule for every subject of ``manage.py purge``.

At a terminal the command says what would be deleted, and asks, unless ``--yes`` is given. Without a terminal it goes on,
and says so, because a script could not answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from django.core.management.base import BaseCommand, CommandError

__all__ = ["YES_HELP", "confirm_deletion"]

YES_HELP = "do not ask before it deletes; at a terminal it does"


def confirm_deletion(command: BaseCommand, foresee: Callable[[], Iterable[str]], *, is_sure: bool) -> None:
    """Returns if the data may be deleted. ``foresee`` does the dry run, and returns its lines; ``is_sure`` is ``--yes``.

    Raises ``CommandError`` if the answer is not yes.
    """
    if is_sure:
        return
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        command.stderr.write(
            "Deleting without a question, because standard input is no terminal; --yes omits this line."
        )
        return
    for line in foresee():
        command.stderr.write(line)
    command.stderr.write("It cannot be taken back. Delete it? [y/N] ", ending="")
    command.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was deleted.", returncode=1)
