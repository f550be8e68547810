"""``manage.py doctor``: examines the database of a Synapse server, read-only, and reports what is wrong and what takes space.

Standard output has the report. Progress goes to standard error. Exit status 0: nothing is wrong; 1: something is wrong;
2: unusable arguments, such as a database that is none of a Synapse server.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pipeline.doctor.report import Report
from pipeline.doctor.sections import by_reason, finding_lines, sections, summary
from pipeline.spark.masters import master_argument
from streams.jobs.command import as_command
from streams.runtime.command_line import SiteCommand
from streams.runtime.text import safe_text

__all__ = ["Command"]

_MOST_OF_A_REASON = 5


class Command(SiteCommand):
    """The command ``doctor``. It neither reads nor writes the site's own database."""

    requires_system_checks = []
    help = (
        "Examine the PostgreSQL database of a Synapse server (1.43 or newer) while it runs: what is wrong, what takes the space, "
        "what frees it; sequences and positions of all streams; and every room computed again, beside the server's own current "
        "state, forward extremities and state groups. Reads one snapshot, and writes nothing to that database."
    )

    examples = (
        ("doctor postgresql://reader@db.example.org/synapse", "everything"),
        ("doctor postgresql://reader@db.example.org/synapse --quick", "without computing rooms"),
        ("doctor postgresql://reader@db.example.org/synapse --html report.html", "a file to hand on"),
        ("doctor postgresql://reader@db.example.org/synapse --rooms '!room:example.org'", "some rooms"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("url", metavar="URL", help="postgresql:// URL of the server's database")
        rooms = parser.add_mutually_exclusive_group()
        rooms.add_argument("--rooms", nargs="+", metavar="ROOM_ID", help="compute only these rooms again")
        rooms.add_argument("--quick", action="store_true", help="compute no room again: ends within a minute")
        parser.add_argument(
            "--master", type=master_argument, metavar="URL",
            help="compute rooms on Spark, at this master (default: the setting, and only when there is much to do)",
        )  # fmt: skip
        parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one HTML file, too")
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """Examines, prints the report, and exits with the status that the module's docstring lists."""
        from pipeline.doctor.examine import examine  # noqa: PLC0415 - imports the driver and parsers
        from pipeline.doctor.many_rooms import check_many_rooms  # noqa: PLC0415
        from pipeline.doctor.page import write_page  # noqa: PLC0415

        if not options["url"].startswith(("postgresql://", "postgres://")):
            raise CommandError(
                "Give the PostgreSQL database of a Synapse server as postgresql://USER@HOST/DATABASE. A SQLite file can be "
                "imported: manage.py import_events.",
                returncode=2,
            )
        with as_command():
            rooms, master = options["rooms"], options["master"]
            check = partial(check_many_rooms, options["url"], say=self._say, rooms=rooms, master=master)
            report = examine(options["url"], self._say, None if options["quick"] else check)
            if options["html"] is not None:
                write_page(report, options["html"])
        if options["json"]:
            self.stdout.write(json.dumps(report.as_json(), ensure_ascii=False))
        else:
            self._print(report)
        if not report.is_well:
            sys.exit(1)

    def _say(self, sentence: str) -> None:
        self.stderr.write(sentence)

    def _print(self, report: Report) -> None:
        write = self.stdout.write
        for found in by_reason(report):
            write(f"{found.reason} ({found.total:,}): {found.meaning}")
            for finding in found.findings[:_MOST_OF_A_REASON]:
                write(f"  {safe_text(finding.text, None)}")
                for line in finding_lines(finding):
                    write(f"    {safe_text(line, None)}")
            if (hidden := found.total - _MOST_OF_A_REASON) > 0:
                write(f"  and {hidden:,} more: --json or --html")
        for section in sections(report):
            write(f"\n{section.title}")
            self.print_table(section.columns, section.rows)
        write("")
        for sentence in summary(report):
            write(safe_text(sentence, None))
        write(report.headline())
