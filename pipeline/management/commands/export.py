"""``manage.py export``: rooms, events, state and memberships as Parquet files, through Spark.

Exit status 0: all is written; 1: the export failed, and the folder is as it was; 2: unusable arguments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from pipeline.errors import PipelineError, UnusableArguments
from pipeline.export.kind import export_lines, run_export
from pipeline.export.tables import MOST_BUCKETS, TABLES
from pipeline.spark.masters import given_master
from streams.db import driver
from streams.errors import StreamError
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]


class Command(SiteCommand):
    """Runs the job and tells its summary."""

    help = (
        "Write rooms, events, state and memberships to Parquet files, by rooms and days, all of one moment; of redacted events "
        "what the redaction left."
    )

    examples = (
        ("export /data/export --since 2026-01-01", "this year, all four tables"),
        ("export /data/export events --room '!room:example.org'", "the events of one room"),
        ("export /data/export --overwrite --json", "everything anew, the outcome as JSON"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("folder", metavar="FOLDER", help="where to; on a cluster one that all workers see")
        parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"these only: {', '.join(TABLES)}")
        parser.add_argument("--room", action="append", metavar="ROOM", help="of this room only; may be repeated")
        parser.add_argument(
            "--since", metavar="DAY", help="from this day on, by the events' own clocks (2026-01-31, or 30d ago)"
        )
        parser.add_argument("--until", metavar="DAY", help="before this day")
        parser.add_argument(
            "--buckets", type=int, metavar="N", help=f"put the rooms into so many buckets (1 to {MOST_BUCKETS})"
        )
        parser.add_argument("--overwrite", action="store_true", help="replace tables that the folder has already")
        parser.add_argument(
            "--master", type=given_master, metavar="URL", help="Spark master, e.g. local[4] or spark://host:7077"
        )
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """As a job."""
        arguments = {
            "tables": options["tables"] or None,
            "rooms": options["room"],
            **{name: options[name] for name in ("since", "until", "buckets", "overwrite")},
        }
        stream: Any = self.stderr  # a file in all that is used
        try:
            summary = run_export(Path(options["folder"]).absolute(), arguments, options["master"], stream)
        except UnusableArguments as error:
            raise CommandError(str(error), returncode=2) from error
        except (DatabaseError, driver.DatabaseError) as error:
            raise CommandError(driver.explain(error), returncode=1) from error
        except (PipelineError, StreamError, OSError) as error:
            raise CommandError(str(error), returncode=1) from error
        for line in [json.dumps(summary, ensure_ascii=False)] if options["json"] else export_lines(summary):
            self.stdout.write(line)
