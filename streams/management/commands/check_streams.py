"""``manage.py check_streams``: sequences, tables and stored positions of all streams at once."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import IO, Any, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.table import Table

from streams import database, inspection, registry

__all__ = ["Command"]


class Command(BaseCommand):
    """Compare the three numbers of every stream; with ``--repair`` move sequences forward."""

    help = (
        "Show for every stream whether its sequence is ahead of its tables and stored positions. Exit status 1 when one is not "
        "(and was not repaired). Example: manage.py check_streams --repair"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--repair", action="store_true", help="move sequences forward to the greatest of the three numbers"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object a line")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show, repair when asked, show again."""
        try:
            findings = self._inspect(repair=options["repair"])
        except database.DatabaseError as error:
            raise CommandError(database.explain(error), returncode=1) from error
        self._json(findings) if options["json"] else self._table(findings)
        if bad := [finding for finding in findings if not finding.well]:
            raise CommandError(
                f"{len(bad)} of {len(findings)} streams are not in order; --repair mends them.", returncode=1
            )

    def _inspect(self, *, repair: bool) -> list[inspection.Finding]:
        with closing(database.direct_connection(application_name="replsite check_streams")) as connection:
            cursor = connection.cursor()
            findings = inspection.inspect_streams(cursor)
            if repair:
                for finding in findings:
                    if not finding.well:
                        value = inspection.repair(cursor, registry.get(finding.stream))
                        self.stderr.write(f"{finding.stream}: {finding.verdict}; sequence moved to {value}")
                findings = inspection.inspect_streams(cursor)
            return findings

    def _json(self, findings: list[inspection.Finding]) -> None:
        for finding in findings:
            self.stdout.write(json.dumps(asdict(finding)))

    def _table(self, findings: list[inspection.Finding]) -> None:
        table = Table("stream", "sequence", "highest in tables", "highest stored", "verdict", "fix")
        for finding in findings:
            table.add_row(*(str(value) for value in asdict(finding).values()))
        Console(file=cast("IO[str]", self.stdout)).print(table)
