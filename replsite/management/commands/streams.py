"""``manage.py streams``: positions, pending facts, readers and their lag; the live page for terminals and scripts.

Exit status: 0 nothing is wrong, 1 something is (a writer is blocked or gone with pending facts, a reader is stuck, a
sequence is behind), 2 unusable arguments.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from replsite.dashboard.page import READERS, STREAMS, Column, live_page_data
from replsite.dashboard.page import Group as PageGroup
from replsite.snapshot import limits, take_snapshot
from replsite.snapshot_views import Snapshot, as_json
from replsite.status import HealthWord
from replsite.tables import lines_of, printable, rows_of
from replsite.trends import History
from streams import database, leases, liveness
from streams.models import Instance, StreamPosition, WriterState

EXAMPLES = """examples:
  manage.py streams                  everything once, worst first
  manage.py streams --watch          again every second until Ctrl-C
  manage.py streams --json | jq .health.sentence
  manage.py streams retire web-3     take a dead writer out, if it is proven dead
"""
_STYLES = {"fine": "green", "note": "blue", "warning": "yellow", "wrong": "bold red"}
WATCH_SECONDS = 1.0
PLAIN_WATCH_SECONDS = 10.0


class Command(BaseCommand):
    """Shows the snapshot, or retires a writer."""

    help = "Show where every writer and reader of every stream is; exit status 1 when something is wrong."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Keep the examples as they are typed."""
        kwargs |= {"epilog": EXAMPLES, "formatter_class": RawDescriptionHelpFormatter}
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options and ``retire``."""
        parser.add_argument("--json", action="store_true", help="one JSON object (with --watch: one a second)")
        parser.add_argument("--watch", action="store_true", help="show it again and again until Ctrl-C")
        parser.add_argument(
            "--now",
            action="store_true",
            help="answer at once; else a reader that is far behind is watched for a while to tell whether it is stuck",
        )
        actions = parser.add_subparsers(dest="action", title="actions", metavar="ACTION")
        retire = actions.add_parser("retire", help="take a writer that is proven dead out of all its streams")
        retire.add_argument("writer", metavar="WRITER", help="name of the writer")

    def handle(self, *args: Any, **options: Any) -> None:
        """Dispatch; a broken pipe or Ctrl-C ends quietly."""
        if options["action"] == "retire":
            self._retire(options["writer"])
            return
        snapshot = self._watch(options) if options["watch"] else self._once(options)
        if snapshot is not None and snapshot.health.word == HealthWord.WRONG:
            sys.exit(1)

    # --- show -----------------------------------------------------------------------------------------------------

    def _once(self, options: dict[str, Any]) -> Snapshot:
        history = History()
        snapshot = take_snapshot(history)
        patience = limits().stuck_after_seconds
        if not options["now"] and _perhaps_stuck(snapshot, patience):
            self.stderr.write(f"A reader is far behind; watching it for {patience:g} s to tell whether it moves.")
            time.sleep(patience + 0.1)
            snapshot = take_snapshot(history)
        self._show(snapshot, as_one_line=options["json"])
        return snapshot

    def _watch(self, options: dict[str, Any]) -> Snapshot | None:
        history, snapshot = History(), None
        console = self._console()
        try:
            if console is not None and not options["json"]:
                with Live(console=console, screen=True, auto_refresh=False) as live:
                    while True:
                        snapshot = take_snapshot(history)
                        live.update(_rich(snapshot), refresh=True)
                        time.sleep(WATCH_SECONDS)
            while True:
                snapshot = take_snapshot(history)
                self._show(snapshot, as_one_line=options["json"])
                self.stdout.flush()
                time.sleep(WATCH_SECONDS if options["json"] else PLAIN_WATCH_SECONDS)
        except KeyboardInterrupt:
            return snapshot

    def _show(self, snapshot: Snapshot, *, as_one_line: bool) -> None:
        if as_one_line:
            self.stdout.write(json.dumps(as_json(snapshot)))
            return
        console = self._console()
        if console is not None:
            console.print(_rich(snapshot))
            return
        page = live_page_data(snapshot)
        self.stdout.write(_headline(snapshot))
        self.stdout.write("\n".join(["", *lines_of(STREAMS, page["streams"], snapshot.as_of)]))
        if page["readers"]:
            self.stdout.write("\n".join(["", *lines_of(READERS, page["readers"], snapshot.as_of)]))

    def _console(self) -> Console | None:
        """For colours and boxes; None when nobody looks."""
        return Console() if self.stdout.isatty() else None

    # --- retire ---------------------------------------------------------------------------------------------------

    def _retire(self, writer: str) -> None:
        rows = list(StreamPosition.objects.filter(instance_name=writer).values_list("state", flat=True))
        if not rows:
            known = sorted(set(StreamPosition.objects.values_list("instance_name", flat=True)))
            text = f"There is no writer {writer!r}. Writers: {', '.join(known) or 'none yet'}."
            raise CommandError(text, returncode=2)
        if all(state == WriterState.RETIRED for state in rows):
            self.stdout.write(f"{writer} is retired already.")
            return
        connection = database.direct_connection(application_name="replsite streams retire")
        try:
            with connection.cursor() as cursor:
                done = liveness.resolve_writer(cursor, writer, f"streams retire on {socket.gethostname()}")
                if not done:
                    raise CommandError(_why_not(cursor, writer), returncode=1)
        finally:
            connection.close()
        for resolution in done:
            where = f"{resolution.stream}: {resolution.from_position} -> {resolution.to_position}"
            self.stdout.write(f"{writer} retired on {where}")


def _why_not(cursor: Any, writer: str) -> str:
    """Who holds the writer's locks; for the refusal."""
    if holder := leases.describe_lock_holder(cursor, database.writer_key(writer)):
        process = Instance.objects.filter(name=writer).values_list("process_id", "host", "command").first()
        who = f"process {process[0]} on host {process[1]} ({process[2]})" if process else "its process"
        return f"Writer {writer!r} lives: {who} holds its lock{holder}. Stop that process; it retires by itself."
    holder = leases.describe_lock_holder(cursor, database.append_key(writer))
    return (
        f"The process of writer {writer!r} is gone, but a transaction of it is still open{holder}. "
        f"Wait for it, or end that session with pg_terminate_backend, then retire again."
    )


def _perhaps_stuck(snapshot: Snapshot, patience: float) -> bool:
    """Whether a living reader has facts unread for so long that one look cannot tell slow from stuck."""
    return any(
        view.lag_seconds >= patience and view.status.word == "catching up"
        for reader in snapshot.readers
        for view in reader.streams
    )


def _headline(snapshot: Snapshot) -> str:
    lines = [f"{snapshot.health.word.upper()}  {printable(snapshot.health.sentence)}"]
    lines += [f"  {p.subject} is {p.verdict.word}: {p.verdict.sentence}" for p in snapshot.health.problems[1:]]
    return "\n".join([*map(printable, lines), f"as of {snapshot.as_of:%Y-%m-%d %H:%M:%S} UTC"])


def _rich(snapshot: Snapshot) -> Group:
    page = live_page_data(snapshot)
    severity = {"well": "fine", "look": "warning", "wrong": "wrong"}[snapshot.health.word]
    parts: list[Any] = [
        Text(_headline(snapshot), style=_STYLES[severity]),
        _rich_table(STREAMS, page["streams"], snapshot),
    ]
    if page["readers"]:
        parts.append(_rich_table(READERS, page["readers"], snapshot))
    return Group(*parts)


def _rich_table(columns: tuple[Column, ...], groups: list[PageGroup], snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for column in columns:
        table.add_column(column.title, justify="right" if column.number else "left", overflow="fold")
    for severity, head, cells in rows_of(groups, snapshot.as_of):
        texts = [Text(cell, style="bold" if head and index == 0 else "") for index, cell in enumerate(cells)]
        texts[1].stylize(_STYLES[severity])
        table.add_row(*texts)
    return table
