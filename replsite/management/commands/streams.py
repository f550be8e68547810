"""Shows positions, pending facts, readers and their lag: the live page for terminals and scripts.

Exit status of ``manage.py streams``: 0 if nothing is wrong, 1 if something is, 2 for unusable arguments. Something is
wrong if a status has the severity ``wrong``. Examples are a writer that is blocked or gone with pending facts, a reader
that is stuck, and a sequence below the stored position of its stream.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from contextlib import closing
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError as DjangoDatabaseError
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from replsite.dashboard.page import JOBS, READERS, ROOMS, STORAGE, STREAMS, WORKERS, Column, live_page_data
from replsite.dashboard.page import Group as PageGroup
from replsite.snapshot.take import limits, take_snapshot
from replsite.snapshot.types import Snapshot, WorkersView, as_json
from replsite.status.trends import History
from replsite.status.verdicts import HealthWord
from replsite.terminal.tables import lines_of, rows_of
from replsite.terminal.writer_actions import Confirmation, WriterActions
from streams.db import driver
from streams.errors import StreamError, UnknownReader, UnknownWriter
from streams.follow import forget_reader
from streams.follow.handlers import effects_database_of, load_handlers
from streams.maintenance.subjects import asked_by
from streams.models import StoredCursor
from streams.runtime.command_line import SiteCommand
from streams.runtime.text import printable

_STYLES = {"fine": "green", "note": "blue", "warning": "yellow", "wrong": "bold red"}
WATCH_SECONDS = 1.0
PLAIN_WATCH_SECONDS = 10.0


class Command(SiteCommand):
    """The command ``streams``. It shows the snapshot, or acts on a writer or a reader."""

    help = "Show where every writer and reader of every stream is; exit status 1 when something is wrong."

    examples = (
        ("streams", "everything once, worst first"),
        ("streams --watch", "again every second until Ctrl-C"),
        ("streams --storage", "also what lies in the database, and how it grows"),
        ("streams --json | jq .health.sentence", "for scripts"),
        ("streams retire web-3", "ask it to leave; a dead one is taken out, if it is proven dead"),
        ("streams abort web-3", "show and end the open transactions that hold its streams back"),
        ("streams forget billing", "remove the cursors of a reader that will not run again"),
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the options and the actions."""
        parser.add_argument("--json", action="store_true", help="one JSON object (with --watch: one a second)")
        parser.add_argument("--watch", action="store_true", help="show it again and again until Ctrl-C")
        parser.add_argument(
            "--storage",
            action="store_true",
            help="also the database, its largest tables, state groups and biggest rooms",
        )
        parser.add_argument(
            "--now",
            action="store_true",
            help="answer at once; else a reader that is far behind is watched for a while to tell whether it is stuck",
        )
        actions = parser.add_subparsers(dest="action", title="actions", metavar="ACTION")
        retire = actions.add_parser("retire", help="ask a living writer to leave its streams, or take a dead one out")
        retire.add_argument("writer", metavar="WRITER", help="name of the writer")
        retire.add_argument(
            "--timeout", type=float, default=30.0, help="seconds to wait for a living one to leave (30)"
        )
        abort = actions.add_parser("abort", help="end the transactions with which a writer holds its streams back")
        abort.add_argument("writer", metavar="WRITER", help="name of the writer")
        abort.add_argument("--yes", action="store_true", help="do not ask")
        forget = actions.add_parser("forget", help="remove a named reader's cursors, so that it is listed no more")
        forget.add_argument("reader", metavar="READER", help="name of the reader")
        forget.add_argument("--stream", help="only its cursor of this stream")
        forget.add_argument("--yes", action="store_true", help="do not ask")

    def handle(self, *args: Any, **options: Any) -> None:
        """Carries out the action, or shows the snapshot. A broken pipe or Ctrl-C ends it quietly."""
        if options["action"] == "forget":
            self._forget(options)
            return
        if options["action"]:
            self._act(options)
            return
        snapshot = self._watch(options) if options["watch"] else self._once(options)
        if snapshot is not None and snapshot.health.word == HealthWord.WRONG:
            sys.exit(1)

    # --- show -----------------------------------------------------------------------------------------------------

    def _once(self, options: dict[str, Any]) -> Snapshot:
        history = History()
        snapshot = take_snapshot(history)
        patience = limits().stuck_after_seconds
        # One snapshot cannot tell a stuck reader from a slow one. A second one shows whether the reader moved meanwhile.
        if not options["now"] and _perhaps_stuck(snapshot, patience):
            self.stderr.write(f"A reader is far behind; watching it for {patience:g} s to tell whether it moves.")
            time.sleep(patience + 0.1)
            snapshot = take_snapshot(history)
        self._show(snapshot, options)
        return snapshot

    def _watch(self, options: dict[str, Any]) -> Snapshot | None:
        history, snapshot = History(), None
        console = self._console()
        try:
            if console is not None and not options["json"]:
                with Live(console=console, screen=True, auto_refresh=False) as live:
                    while True:
                        snapshot = take_snapshot(history)
                        live.update(_rich(snapshot, storage=options["storage"]), refresh=True)
                        time.sleep(WATCH_SECONDS)
            while True:
                snapshot = take_snapshot(history)
                self._show(snapshot, options)
                self.stdout.flush()
                time.sleep(WATCH_SECONDS if options["json"] else PLAIN_WATCH_SECONDS)
        except KeyboardInterrupt:
            # The normal end: the exit status is that of the last snapshot.
            return snapshot

    def _show(self, snapshot: Snapshot, options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(as_json(snapshot)))
            return
        console = self._console()
        if console is not None:
            console.print(_rich(snapshot, storage=options["storage"]))
            return
        self.stdout.write(_headline(snapshot))
        for columns, groups in _tables(snapshot, storage=options["storage"]):
            self.stdout.write("\n".join(["", *lines_of(columns, groups, snapshot.as_of)]))

    def _console(self) -> Console | None:
        """Returns a console for colours and boxes, or None if the output is no terminal."""
        return Console() if self.stdout.isatty() else None

    # --- writers --------------------------------------------------------------------------------------------------

    def _act(self, options: dict[str, Any]) -> None:
        actions = WriterActions(self.stdout.write, self.stderr.write)
        try:
            with closing(driver.direct_connection(application_name=f"replsite streams {options['action']}")) as own:
                if options["action"] == "retire":
                    actions.retire(own.cursor(), options["writer"], options["timeout"])
                else:
                    actions.abort(own.cursor(), options["writer"], is_confirmed=options["yes"])
        except UnknownWriter as error:
            raise CommandError(str(error), returncode=2) from error
        except driver.DatabaseError as error:
            raise CommandError(driver.explain(error), returncode=1) from error

    # --- readers --------------------------------------------------------------------------------------------------

    def _forget(self, options: dict[str, Any]) -> None:
        load_handlers()  # the handlers declare the database of a reader's cursors
        reader = options["reader"]
        try:
            if not options["yes"]:
                cursors = StoredCursor.objects.using(effects_database_of(reader)).filter(reader=reader)
                for cursor in cursors.order_by("stream"):
                    if options["stream"] in (None, cursor.stream):
                        self.stdout.write(
                            f"{reader} on {cursor.stream}: at {cursor.base}, {cursor.facts_handled} facts handled"
                        )
                Confirmation().ask(
                    reader, "Forget it? A reader of this name that is started later does not go on there."
                )
            for gone in forget_reader(reader, options["stream"], asked_by()):
                self.stdout.write(f"{reader} on {gone.stream}: cursor at {gone.base} removed")
        except UnknownReader as error:
            raise CommandError(str(error), returncode=2) from error
        except StreamError as error:
            raise CommandError(str(error), returncode=1) from error
        except (driver.DatabaseError, DjangoDatabaseError) as error:
            raise CommandError(driver.explain(error), returncode=1) from error


def _perhaps_stuck(snapshot: Snapshot, patience: float) -> bool:
    """Returns true if a reader that catches up has a lag of at least ``patience`` seconds.

    One snapshot cannot tell whether such a reader is slow or stuck.
    """
    return any(
        view.lag_seconds >= patience and view.status.word == "catching up"
        for reader in snapshot.readers
        for view in reader.streams
    )


def _headline(snapshot: Snapshot) -> str:
    lines = [f"{snapshot.health.word.upper()}  {printable(snapshot.health.sentence)}"]
    lines += [f"  {p.subject} is {p.verdict.word}: {p.verdict.sentence}" for p in snapshot.health.problems[1:]]
    return "\n".join([*map(printable, lines), f"as of {snapshot.as_of:%Y-%m-%d %H:%M:%S} UTC"])


def _tables(snapshot: Snapshot, *, storage: bool) -> list[tuple[tuple[Column, ...], list[PageGroup]]]:
    """Returns the columns and groups of each table that has rows, in order.

    The table of streams is included even if it has no rows, the tables of storage and rooms only with ``storage``.
    """
    page = live_page_data(snapshot)
    shown = [(STREAMS, page["streams"]), (READERS, page["readers"]), (JOBS, page["jobs"])]
    if storage and snapshot.storage is not None:
        shown += [(STORAGE, page["storage"]), (ROOMS, page["rooms"])]
    if snapshot.workers != WorkersView():
        shown.append((WORKERS, page["workers"]))
    return [(columns, groups) for columns, groups in shown if groups or columns is STREAMS]


def _rich(snapshot: Snapshot, *, storage: bool) -> Group:
    severity = {"well": "fine", "look": "warning", "wrong": "wrong"}[snapshot.health.word]
    tables = [_rich_table(columns, groups, snapshot) for columns, groups in _tables(snapshot, storage=storage)]
    return Group(Text(_headline(snapshot), style=_STYLES[severity]), *tables)


def _rich_table(columns: tuple[Column, ...], groups: list[PageGroup], snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for column in columns:
        table.add_column(column.title, justify="right" if column.number else "left", overflow="fold")
    for severity, head, cells in rows_of(groups, snapshot.as_of):
        texts = [Text(cell, style="bold" if head and index == 0 else "") for index, cell in enumerate(cells)]
        texts[1].stylize(_STYLES[severity])
        table.add_row(*texts)
    return table
