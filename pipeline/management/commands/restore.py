"""``manage.py restore FOLDER``: put an archive of a room back.

Exit status 0; 1: the archive is damaged, or does not fit this database; 2: unusable arguments.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from pipeline.archive.options import run_as_job
from pipeline.archive.restore import RESTORE
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]


class Command(SiteCommand):
    """Restores an archive."""

    help = "Put an archive of a room back, byte for byte, with states and visibility. Safe beside writers; may be repeated."

    examples = (
        ("restore /backup/room-1a2b", "the folder that archive or purge named"),
        ("restore /backup/room-1a2b --json", "the outcome as JSON"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("archive", metavar="FOLDER", help="the folder of one archive, as archive or purge named it")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """As a job."""
        found = run_as_job(self, RESTORE, {"archive": options["archive"]})
        if options["json"]:
            self.stdout.write(json.dumps(found))
            return
        self.stdout.write(
            f"{found['room_id']}: of {found['archived']} events {found['restored']} written again, {found['placed']} given "
            f"their place again, {found['here']} were here; {found['redacted']} redacted since; visibility {found['visibility']}"
        )
