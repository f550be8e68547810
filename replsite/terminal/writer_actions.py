"""Implements the dialogue of ``manage.py streams retire`` and ``abort``. ``streams.writing.terminate`` does the work.

The methods take a cursor of a direct connection (not through a pooler). They raise ``CommandError`` with status 1 if
the action was not done, or only in part. The status is 2 if a confirmation is needed and there is no terminal.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from shlex import quote
from typing import Any

from django.core.management.base import CommandError

from replsite.humanize import counted, duration
from streams.writing import terminate
from streams.writing.dead_writers import Resolution, resolve_writer
from streams.writing.terminate import Holding

__all__ = ["Confirmation", "WriterActions"]

Say = Callable[[str], Any]


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


class WriterActions:
    """One run of ``retire`` or ``abort``."""

    def __init__(self, say: Say, warn: Say, ask: Callable[[str], str] | None = None) -> None:
        self._say = say
        self._warn = warn
        self._confirmation = Confirmation(ask)

    def retire(self, cursor: Any, writer: str, timeout_seconds: float) -> None:
        """Retires the writer on all its streams.

        A dead writer is retired if evidence shows that it is dead. A living writer is asked to leave, and the call
        waits up to ``timeout_seconds`` until it has left.
        """
        found = terminate.holding(cursor, writer)
        if found.retired:
            self._say(f"{writer} is retired already.")
            return
        by = _by("retire")
        if done := resolve_writer(cursor, writer, by):
            self._report(done)
            return
        if found.lock is None:
            # The process is gone, but the writer could not be resolved. Another process may be retiring it right now, so this
            # waits a moment before it reports an open transaction.
            if terminate.wait_until(lambda: terminate.is_retired(cursor, writer), terminate.YOUNG_SECONDS):
                self._say(f"{writer} is retired already.")
                return
            raise CommandError(_still_open(terminate.holding(cursor, writer)), returncode=1)
        streams = terminate.ask_to_leave(cursor, writer, by)
        self._warn(f"{writer} lives ({found.process}); it was asked to leave {', '.join(streams)}.")
        if not terminate.wait_until(lambda: terminate.is_retired(cursor, writer), timeout_seconds):
            raise CommandError(_not_left(terminate.holding(cursor, writer), timeout_seconds), returncode=1)
        for row in terminate.holding(cursor, writer).rows:
            self._say(f"{writer} retired on {row.stream} at {row.position}")

    def abort(self, cursor: Any, writer: str, *, is_confirmed: bool) -> None:
        """Lists the transactions that hold the writer's streams back, and ends them once the operator confirms.

        If the writer's process does not react, also ends the session of the writer's lock.
        """
        found = terminate.holding(cursor, writer)
        if found.retired:
            self._say(f"{writer} is retired: it holds nothing back.")
            return
        if not found.transactions and not found.stuck_facts and not found.is_silent:
            self._say(f"{writer} holds nothing back: no transaction of it is open for long, nothing is pending.")
            return
        for line in _described(found):
            self._say(line)
        if not is_confirmed:
            self._confirmation.ask(writer, "End them? What they have written is rolled back.")
        self._end(cursor, found)

    def _end(self, cursor: Any, found: Holding) -> None:
        by, since = _by("abort"), terminate.now(cursor)
        ended = terminate.end_sessions(cursor, found, by)
        for session in ended:
            self._say(f"ended {session}")
        if found.lock is not None and terminate.wait_until(
            lambda: terminate.is_free(cursor, found.writer, ended, since), terminate.patience_seconds()
        ):
            self._say(f"{found.writer} goes on; nothing of these transactions is pending any more.")
            return
        if found.lock is not None:
            self._warn(f"{found.process} shows no sign of having noticed; ending the session of its lock.")
        if done := terminate.end_process(cursor, found, by):
            self._report(done)
        elif terminate.is_retired(cursor, found.writer):
            self._say(f"{found.writer} is retired.")
        else:
            raise CommandError(_still_open(terminate.holding(cursor, found.writer)), returncode=1)

    def _report(self, done: list[Resolution]) -> None:
        for one in done:
            self._say(f"{one.writer} retired on {one.stream}: {one.from_position} -> {one.to_position}")


def _by(action: str) -> str:
    return f"streams {action} on {socket.gethostname()}"


def _described(found: Holding) -> list[str]:
    """Returns lines about what holds the streams back: process and host, pending facts, and open transactions."""
    lines = [f"{found.writer}: {found.process}, {'alive' if found.lock else 'gone'}"]
    for row in found.rows:
        if row.pending_facts:
            since = f" since {row.oldest_pending_at:%Y-%m-%d %H:%M:%S}" if row.oldest_pending_at else ""
            number = f" in transaction {row.oldest_pending_transaction}" if row.oldest_pending_transaction else ""
            lines.append(f"  {row.stream}: {counted(row.pending_facts, 'fact')} pending{since}{number}")
    for session in found.transactions:
        lines.append(f"  {session}, for {duration(session.open_seconds or 0.0)}; last: {session.query}")
    if found.is_silent:
        lines.append(f"  no sign of life for {duration(found.silent_seconds)}, but {found.lock} still holds its name")
    elif not found.transactions:
        lines.append("  no transaction of it is open: its process does not announce their end")
    return lines


def _still_open(found: Holding) -> str:
    sessions = "; ".join(map(str, found.transactions)) or "a transaction that began just now"
    return (
        f"The process of writer {found.writer!r} is gone, but a transaction of it is still open ({sessions}). "
        f"Wait for it, or end it: manage.py streams abort {quote(found.writer)}, then retire again."
    )


def _not_left(found: Holding, seconds: float) -> str:
    held = "; ".join(map(str, found.transactions)) or "its process does not answer"
    return (
        f"Writer {found.writer!r} ({found.process}) was asked to leave, but has not after {duration(seconds)}: "
        f"{counted(found.pending_facts, 'fact')} pending, {held}. It reserves nothing new and leaves when they are "
        f"complete. To end them: manage.py streams abort {quote(found.writer)}."
    )
