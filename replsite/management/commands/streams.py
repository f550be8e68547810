"""Shows positions, open appends, readers and their lag: the live page for terminals and scripts; and ends appends (`abort`).

The rows and columns of its tables are in ``replsite/live_rows``, a file for each table.

Exit status of ``manage.py streams``: 0 if nothing is wrong, 1 if something is, 2 for unusable arguments. Something is
wrong if a status has the severity ``wrong``. Examples are a stream that is blocked by an open append, a reader that is stuck,
and a sequence below the stored position of its stream.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DjangoError
from django.db import connections

from replsite.dashboard.page import TABLES, live_page_data
from replsite.live_rows.cells import Column, Group, as_json
from replsite.live_rows.reading import limits, read_current_snapshot
from replsite.live_rows.snapshot import Snapshot
from replsite.status.trends import History
from replsite.status.words import HealthWord
from replsite.terminal.tables import Content, lines_of
from streams import registry
from streams.conf import on_database, stream_settings
from streams.db import driver
from streams.runtime.command_line import SITE_CHECKS, SiteCommand, asked_by
from streams.runtime.text import safe_text

WATCH_SECONDS = 1.0
PLAIN_WATCH_SECONDS = 10.0


class Command(SiteCommand):
    """The command ``streams``. It shows the snapshot, or acts on a writer or a reader."""

    requires_system_checks = (SITE_CHECKS,)
    help = "Show where every writer and reader of every stream is; exit status 1 when something is wrong."

    examples = (
        ("streams", "everything once, worst first"),
        ("streams --watch", "again every second until Ctrl-C"),
        ("streams --storage", "also what lies in the database, and how it grows"),
        ("streams --json | jq .health.sentence", "for scripts"),
        ("streams abort orders", "show and end the open transactions that hold the stream back"),
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
        parser.add_argument(
            "--database", metavar="ALIAS", help="of the settings' databases (default: the streams' own)"
        )
        actions = parser.add_subparsers(dest="action", title="actions", metavar="ACTION")
        abort = actions.add_parser("abort", help="end the open transactions that hold a stream back")
        abort.add_argument("stream", metavar="STREAM", help="name of the stream")
        abort.add_argument("--yes", action="store_true", help="do not ask")
        forget = actions.add_parser(
            "forget", help="remove a named reader's cursors, so that it is listed no more; or end a record"
        )
        forget.add_argument("reader", metavar="READER", help="name of the reader, or of the record")
        forget.add_argument("--stream", help="only its cursor of this stream")
        forget.add_argument("--yes", action="store_true", help="do not ask")

    def handle(self, *args: Any, **options: Any) -> None:
        """Carries out the action, or shows the snapshot. A broken pipe or Ctrl-C ends the command without an error."""
        alias = options["database"] or stream_settings().database
        if alias not in connections:
            raise CommandError(
                f"There is no database {alias!r} in the settings: use {', '.join(connections)}.", returncode=2
            )
        with on_database(alias):
            self._handle(options)

    def _handle(self, options: dict[str, Any]) -> None:
        if options["action"]:
            self._act(options)
            return
        try:
            snapshot = self._watch(options) if options["watch"] else self._once(options)
        except DjangoError as error:  # the database is away, or a table is not made yet
            raise CommandError(driver.explain(error), returncode=1) from error
        if snapshot is not None and snapshot.health.word == HealthWord.WRONG:
            sys.exit(1)

    # --- show -----------------------------------------------------------------------------------------------------

    def _once(self, options: dict[str, Any]) -> Snapshot:
        history = History()
        snapshot = read_current_snapshot(history)
        patience = limits().stuck_after_seconds
        # One snapshot cannot tell a stuck reader from a slow one. A second one shows whether the reader moved meanwhile.
        if not options["now"] and _perhaps_stuck(snapshot, patience):
            self.stderr.write(f"A reader is far behind; watching it for {patience:g} s to tell whether it moves.")
            time.sleep(patience + 0.1)
            snapshot = read_current_snapshot(history)
        self._show(snapshot, options)
        return snapshot

    def _watch(self, options: dict[str, Any]) -> Snapshot | None:
        history, snapshot = History(), None
        try:
            screen = self._screen()
            if screen is not None and not options["json"]:
                with screen.updating() as update:
                    while True:
                        snapshot = read_current_snapshot(history)
                        update(_content(snapshot, storage=options["storage"]))
                        time.sleep(WATCH_SECONDS)
            while True:
                snapshot = read_current_snapshot(history)
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
        content, screen = _content(snapshot, storage=options["storage"]), self._screen()
        if screen is not None:
            screen.show(content)
            return
        self.stdout.write(content.headline)
        for columns, groups in content.tables:
            self.stdout.write("\n".join(["", *lines_of(columns, groups, content.as_of)]))

    def _screen(self) -> ModuleType | None:
        if not self.stdout.isatty():
            return None
        from replsite.terminal import screen  # noqa: PLC0415 - imports rich, which is a twentieth of a start

        return screen

    # --- actions --------------------------------------------------------------------------------------------------

    def _act(self, options: dict[str, Any]) -> None:
        # Imported only here: it imports followers, which takes a tenth of the time that a command needs to start.
        from replsite.operator_actions import Asked  # noqa: PLC0415
        from replsite.terminal.confirm import act  # noqa: PLC0415

        stream, name = options["stream"], options.get("reader")
        if name is None and registry.find(stream) is None:
            raise CommandError(f"There is no stream {stream!r}. Streams: {', '.join(registry.names())}.", returncode=2)
        asked = Asked(stream, asked_by()) if name is None else Asked(name, asked_by(), stream)
        act(self.stdout.write, "end-holder" if name is None else "forget-reader", asked, is_confirmed=options["yes"])


def _perhaps_stuck(snapshot: Snapshot, patience: float) -> bool:
    # One snapshot cannot tell whether such a reader is slow or stuck.
    return any(
        view.lag_seconds >= patience and view.status.word == "catching up"
        for reader in snapshot.readers
        for view in reader.streams
    )


def _content(snapshot: Snapshot, *, storage: bool) -> Content:
    severity = {"well": "fine", "look": "warning", "wrong": "wrong"}[snapshot.health.word]
    return Content(_headline(snapshot), severity, _tables(snapshot, storage=storage), snapshot.as_of)


def _headline(snapshot: Snapshot) -> str:
    lines = [f"{snapshot.health.word.upper()}  {snapshot.health.sentence}"]
    lines += [f"  {p.words}: {p.verdict.sentence}" for p in snapshot.health.problems[1:]]
    return "\n".join([*(safe_text(line, None) for line in lines), f"as of {snapshot.as_of:%Y-%m-%d %H:%M:%S} UTC"])


def _tables(snapshot: Snapshot, *, storage: bool) -> list[tuple[tuple[Column, ...], list[Group]]]:
    page: Mapping[str, Any] = live_page_data(snapshot)
    names = [name for name in TABLES if storage or name not in ("storage", "rooms")]
    return [(TABLES[name].columns, page[name]) for name in names if page[name] or name == "streams"]
