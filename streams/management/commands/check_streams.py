"""``manage.py check_streams``: compares the sequences, tables and stored positions of all streams."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from streams import epochs
from streams.db import driver
from streams.errors import StreamError
from streams.maintenance import check
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]


class Command(SiteCommand):
    """The command ``check_streams``. It compares three numbers of each stream.

    The numbers are the sequence's value, the highest ID in the tables and the highest stored position. ``--repair``
    raises a sequence's value if it is below one of the other numbers.
    """

    help = (
        "Show for every stream whether its sequence is ahead of its tables and stored positions. Exit status 1 when one is not "
        "(and was not repaired). Shows the database's epoch, and begins a new one when it was restored."
    )

    examples = (
        ("check_streams", "all streams at once"),
        ("check_streams --repair", "move sequences forward that are behind"),
        ("check_streams --new-epoch", "after a restore by hand: old tokens are refused"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--repair", action="store_true", help="move sequences forward to the greatest of the three numbers"
        )
        epoch = parser.add_mutually_exclusive_group()
        epoch.add_argument(
            "--new-epoch",
            action="store_true",
            help="the database was put back: refuse all tokens that were kept so far",
        )
        epoch.add_argument(
            "--keep-epoch",
            action="store_true",
            help="the database moved and nothing was lost (pg_upgrade): tokens stay good; before anything else starts",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object a line")

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints the findings; with ``--repair``, repairs the streams first. Raises `CommandError` if a finding is not ``ok``."""
        try:
            with closing(driver.direct_connection(application_name="replsite check_streams")) as connection:
                self._check(connection.cursor(), options)
        except driver.DatabaseError as error:
            raise CommandError(driver.explain(error), returncode=1) from error
        except StreamError as error:
            raise CommandError(str(error), returncode=1) from error

    def _check(self, cursor: Any, options: dict[str, Any]) -> None:
        epoch = self._epoch(cursor, new=options["new_epoch"], keep=options["keep_epoch"])
        for finding, value in check.repair_streams(cursor) if options["repair"] else ():
            self.stderr.write(f"{finding.stream}: {finding.verdict}; sequence moved to {value}")
        findings = check.inspect_streams(cursor)
        self._json(findings, epoch) if options["json"] else self._table(findings, epoch)
        if bad := [finding for finding in findings if not finding.well]:
            raise CommandError(
                f"{len(bad)} of {len(findings)} streams are not in order; --repair mends them.", returncode=1
            )

    def _epoch(self, cursor: Any, *, new: bool, keep: bool) -> str:
        if new:
            return epochs.begin_epoch(cursor, "check_streams --new-epoch")
        return epochs.keep_epoch(cursor) if keep else epochs.current_epoch(cursor)

    def _json(self, findings: list[check.Finding], epoch: str) -> None:
        for finding in findings:
            self.stdout.write(json.dumps(asdict(finding) | {"epoch": epoch}))

    def _table(self, findings: list[check.Finding], epoch: str) -> None:
        columns = ("stream", "sequence", "highest in tables", "highest stored", "verdict", "fix")
        self.print_table(columns, (list(asdict(finding).values()) for finding in findings))
        self.stdout.write(f"epoch {epoch}")
