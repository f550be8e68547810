"""Implements the dialogue of ``manage.py streams abort``. ``streams.holds.end`` does the work.

The function takes a cursor of a direct connection (not through a pooler). It raises ``CommandError`` with status 1 if the action
was not done, or only in part. The status is 2 if a confirmation is needed and there is no terminal.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError

from streams.holds.end import blockers, end_holders, old_holders
from streams.runtime.amounts import counted
from streams.runtime.text import safe_text

__all__ = ["Confirmation", "abort"]


class Confirmation:
    """A prompt before an action that cannot be undone. The operator has to type the name."""

    def __init__(self, ask: Callable[[str], str] | None = None) -> None:
        self._ask = ask or (input if sys.stdin is not None and sys.stdin.isatty() else None)

    def ask(self, name: str, question: str) -> None:
        """Returns once the name was typed. Raises ``CommandError`` for any other answer, or if there is no terminal."""
        if self._ask is None:
            raise CommandError(f"{question} There is no terminal to ask: add --yes.", returncode=2)
        if self._ask(f"{question} Type {name} to go on: ").strip() != name:
            raise CommandError("Not confirmed; nothing was done.", returncode=1)


def abort(cursor: Any, stream: str, say: Callable[[str], Any], confirmation: Confirmation | None) -> None:
    """Lists the open appends that hold the stream back, and ends them once the operator confirms.

    Does not ask if ``confirmation`` is None.
    """
    found = old_holders(cursor, stream)
    if not found:
        say(f"Nothing holds {stream} back: no append to it is open for long.")
        return
    for holder in found:
        say(
            f"  {safe_text(str(holder), 300)}, holds it back at {holder.bound}; last: {safe_text(holder.statement or '', 200)}"
        )
    for blocker in blockers(cursor, found):
        say(f"  waits for a lock of {safe_text(str(blocker), 300)}")
    if confirmation is not None:
        confirmation.ask(stream, "End them? What they have written is rolled back.")
    ended = end_holders(cursor, found, f"streams abort on {socket.gethostname()}")
    for holder in ended:
        say(f"ended {safe_text(str(holder), 300)}")
    if left := len(found) - len(ended):
        raise CommandError(
            f"{counted(left, 'open append')} of {stream} not ended: over by now, or a prepared transaction, which ROLLBACK "
            f"PREPARED ends. Look again: manage.py streams",
            returncode=1,
        )
