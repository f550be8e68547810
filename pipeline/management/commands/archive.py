"""``manage.py archive ROOM FOLDER``: write a room, or its history below a place, to Parquet files; nothing is deleted.

Exit status 0; 1: no archive was written; 2: unusable arguments.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from pipeline.archive.cut import CUTS, add_cut_options
from pipeline.archive.kind import ARCHIVE
from pipeline.archive.options import add_spark_options, run_as_job
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]


class Command(SiteCommand):
    """Writes an archive."""

    help = "Write a room, or its history, to Parquet files that restore takes back."

    examples = (
        ("archive '!room:example.org' /backup", "the whole room"),
        ("archive '!room:example.org' /backup --before '$event'", "what purge history would delete"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("room", metavar="ROOM", help="the room")
        parser.add_argument("folder", metavar="FOLDER", help="where the archive's own folder is made")
        add_cut_options(parser, required=False)
        parser.add_argument("--delete-local", action="store_true", help="with a cut: messages of this server, too")
        add_spark_options(parser)
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """As a job."""
        names = ("room", "folder", *CUTS, "delete_local", "spark", "master")
        found = run_as_job(self, ARCHIVE, {name: options[name] for name in names})
        if options["json"]:
            self.stdout.write(json.dumps(found))
        else:
            self.stdout.write(
                f"{found['room_id']}: {found['events']} events in {found['folder']}, {found['bytes']:,} bytes"
            )
