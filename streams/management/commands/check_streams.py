"""``manage.py check_streams``: checks the sequences of all streams and tables against tables and stored positions."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from streams import epochs
from streams.db import driver
from streams.holds.weaknesses import Weakness
from streams.jobs.command import as_command_errors
from streams.maintenance import check, table_sequences
from streams.maintenance.table_sequences import TableFinding
from streams.runtime.command_line import SiteCommand


class Command(SiteCommand):
    """The command ``check_streams``. It checks each stream's sequence, and compares three numbers of the stream.

    The numbers are the sequence's value, the highest ID in the tables and the highest stored position. It also checks
    the sequences that number the rows of the site's tables, and what holds the streams. ``--repair`` mends a sequence, and
    raises its value if it is below one of the other numbers. It installs triggers that are missing.
    """

    help = (
        "Show for every stream whether its sequence is as it must be, and ahead of its tables and stored positions, and name "
        "tables whose rows would get numbers that are taken. Exit status 1 when something is wrong (and was not repaired). "
        "Shows the database's epoch, and begins a new one when it was restored."
    )

    examples = (
        ("check_streams", "all streams at once"),
        ("check_streams --repair", "mend sequences, and move those forward that are behind"),
        ("check_streams --new-epoch", "after a restore by hand: old tokens are refused"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--repair",
            action="store_true",
            help="mend sequences, and move them forward to the greatest of the three numbers; as the owner of the tables, if "
            "a sequence has to be altered",
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
        with as_command_errors(), closing(_connect()) as connection, closing(_connect()) as other:
            self._check(connection.cursor(), other.cursor(), options)

    def _check(self, cursor: Any, other: Any, options: dict[str, Any]) -> None:
        epoch = self._epoch(cursor, new=options["new_epoch"], keep=options["keep_epoch"])
        if options["repair"]:
            for table, done in table_sequences.repair_tables(cursor):
                self.stderr.write(f"{table.table}.{table.column}: {table.verdict}; {done}")
            for finding, done in check.repair_streams(cursor):
                self.stderr.write(f"{finding.stream}: {finding.verdict}; {done}")
            for weakness, done in check.repair_holds(cursor, other):
                self.stderr.write(f"{weakness.stream}: {weakness.problem}; {done}")
        findings = check.inspect_streams(cursor)
        tables = [f for f in table_sequences.inspect_tables(cursor) if not f.well]
        weak = check.inspect_holds(cursor, other)
        losing = [found for found in weak if found.loses]
        (self._json if options["json"] else self._print)(findings, tables, weak, epoch)
        wrong = [finding for finding in findings if not finding.well]
        bad = [f"{len(wrong)} of {len(findings)} streams"] if wrong else []
        bad += [f"the numbers of {len(tables)} tables"] if tables else []
        if losing:
            bad.append(f"the holds of {len({w.stream for w in losing})} streams")
        if bad:
            others = [f"{w.stream}: {w.fix.rstrip('.')}" for w in wrong if not w.is_mendable]
            others += [f"{w.stream or 'all streams'}: {w.fix.rstrip('.')}" for w in losing]
            hopeless = {w.stream for w in wrong if not w.is_mendable}  # no trigger is installed without its sequence
            can_mend = tables or len(hopeless) < len(wrong)
            can_mend = can_mend or any(w.statement and w.stream not in hopeless for w in losing)
            steps = dict.fromkeys([*(["--repair mends them"] if can_mend else []), *others])  # one may mend several
            raise CommandError(f"{' and '.join(bad)} are not in order; {'; '.join(steps)}.", returncode=1)

    def _epoch(self, cursor: Any, *, new: bool, keep: bool) -> str:
        if new:
            return epochs.begin_epoch(cursor, "check_streams --new-epoch")
        return epochs.keep_epoch(cursor) if keep else epochs.current_epoch(cursor)

    def _json(
        self, findings: list[check.Finding], tables: list[TableFinding], weak: list[Weakness], epoch: str
    ) -> None:
        for finding in findings:
            self.stdout.write(json.dumps(asdict(finding) | {"epoch": epoch}))
        for t in tables:
            self.stdout.write(json.dumps(asdict(t) | {"verdict": t.verdict, "fix": t.fix, "epoch": epoch}))
        for weakness in weak:
            found = {
                "held": weakness.stream, "verdict": weakness.problem, "fix": weakness.fix, "loses_facts": weakness.loses,
            }  # fmt: skip
            self.stdout.write(json.dumps(found | {"epoch": epoch}))

    def _print(
        self, findings: list[check.Finding], tables: list[TableFinding], weak: list[Weakness], epoch: str
    ) -> None:
        columns = ("stream", "sequence", "highest in tables", "highest stored", "verdict", "fix")
        shown = [[getattr(f, column.replace(" ", "_")) for column in columns] for f in findings]
        self.print_table(columns, (["" if cell is None else cell for cell in row] for row in shown))
        if tables:
            rows = ([f"{t.table}.{t.column}", t.sequence, t.highest_in_tables, t.verdict, t.fix] for t in tables)
            self.print_table(("column", "sequence", "highest in table", "verdict", "fix"), rows)
        if weak:
            names = [w.stream or "all" for w in weak]
            rows = ([name, w.problem, "yes" if w.loses else "no"] for name, w in zip(names, weak, strict=True))
            self.print_table(("held stream", "verdict", "loses facts"), rows)
            # Statements to copy, too long for a cell. One may mend several triggers.
            for fix in dict.fromkeys(f"{name}: {found.fix}" for name, found in zip(names, weak, strict=True)):
                self.stdout.write(fix)
        self.stdout.write(f"epoch {epoch}")


def _connect() -> Any:
    return driver.direct_connection(application_name="replsite check_streams")
