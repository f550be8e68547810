"""``manage.py compress_state``: the state groups of rooms, rewritten to as few rows as they need.

Exit status 0: done, or nothing would shrink; 1: a room is damaged, or was busy, or the database is away; 2: unusable arguments,
or a room that is not here.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from events.errors import EventsError
from pipeline.errors import PipelineError, UnusableArguments
from pipeline.jobs.run import run_job
from pipeline.maintenance.compress import COMPRESS_STATE, LEAST_SAVING, compression_lines
from streams.db import driver
from streams.errors import StreamError
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]


class Command(SiteCommand):
    """Runs the job and tells its summary."""

    help = (
        "Rewrite the state groups of rooms to as few rows as they need. Safe beside writers and readers; may be interrupted and "
        "repeated; rooms that would not shrink stay as they are."
    )

    examples = (
        ("compress_state --all --dry-run", "how many rows would be saved"),
        ("compress_state '!room:example.org'", "one room"),
        ("compress_state --all --least-saving 20", "only rooms that save a fifth or more"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("rooms", nargs="*", metavar="ROOM", help="these rooms")
        parser.add_argument("--all", action="store_true", help="all rooms")
        parser.add_argument(
            "--least-saving",
            type=float,
            default=LEAST_SAVING,
            metavar="PERCENT",
            help=f"leave rooms that would save less of their rows (default: {LEAST_SAVING:g})",
        )
        parser.add_argument("--dry-run", action="store_true", help="only say how much would be saved")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """As a job."""
        if bool(options["rooms"]) == options["all"]:
            raise CommandError("Name rooms, or give --all.", returncode=2)
        arguments = {"rooms": options["rooms"] or None, **{name: options[name] for name in ("least_saving", "dry_run")}}
        stream: Any = self.stderr  # a file in all that is used
        try:
            summary = run_job(COMPRESS_STATE, arguments, stream=stream)
        except UnusableArguments as error:
            raise CommandError(str(error), returncode=2) from error
        except (DatabaseError, driver.DatabaseError) as error:
            raise CommandError(driver.explain(error), returncode=1) from error
        except (EventsError, PipelineError, StreamError) as error:
            raise CommandError(str(error), returncode=1) from error
        for line in [json.dumps(summary, ensure_ascii=False)] if options["json"] else compression_lines(summary):
            self.stdout.write(line)
        if summary["unknown"] and options["rooms"]:
            raise CommandError(f"There is no room {', '.join(summary['unknown'][:5])}.", returncode=2)
        if left := len(summary["failed"]) + len(summary["busy"]):
            raise CommandError(f"compress_state: {left} rooms were left as they are.", returncode=1)
