"""``manage.py import_events``: imports room histories from files and Synapse databases, through Spark.

Standard output ends with one line of JSON. Everything else goes to standard error. Exit status 0: all events are
stored, by this run or an earlier run; 1: lines were quarantined, or the import could not be finished; 2: unusable
arguments.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from pipeline.models import QuarantinedLine
from pipeline.operations.import_events import ImportEvents
from streams.conf import stream_settings
from streams.jobs.arguments import add_options
from streams.jobs.command import as_command
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]

_MOST_SHOWN = 10


class Command(SiteCommand):
    """The command that imports histories. It reports the totals and the lines that were quarantined."""

    help = (
        "Import room histories: JSON Lines files (.gz and .zst too), one event a line, bare or wrapped as "
        '{"json": {...}, "room_version": ...}; Parquet files or folders of them; a Synapse database (postgresql:// URL or SQLite '
        "file). Each room becomes visible as a whole; connected followers see every event."
    )

    examples = (
        ("import_events data/rooms/*/events.jsonl.gz", "files of JSON Lines"),
        ("import_events /data/rooms.parquet --as-history", "new to no user"),
        ("import_events postgresql://reader@db.example.org/synapse", "a Synapse database"),
        ("import_events /data/rooms.parquet --keys keys.json", "only what its servers signed"),
        ("import_events /data/rooms.parquet --resume", "go on where it ended early"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_options(parser, ImportEvents.arguments)

    def handle(self, *args: Any, **options: Any) -> None:
        """Imports, prints the summary, and exits with the status that the module's docstring lists."""
        from pipeline.importing.job import ImportOptions, import_history  # noqa: PLC0415 - needs pyspark

        wanted = ImportOptions(
            options["sources"], options["as_history"], options["resume"], options["master"], options["keys"]
        )
        try:
            with as_command():
                outcome = import_history(wanted)
        except KeyboardInterrupt:
            raise CommandError("Interrupted. Rooms that were loaded stay; go on with --resume.", returncode=1) from None
        if not options["json"]:
            self._report(outcome)
        self.stdout.write(json.dumps(outcome.summary()))
        if outcome.quarantined:
            sys.exit(1)

    def _report(self, outcome: Any) -> None:
        rate = outcome.read / max(outcome.seconds - outcome.spark_seconds, 0.001)
        spark = f"{outcome.spark_seconds:.1f} s of it starting Spark; else " if outcome.spark_seconds else ""
        self.stderr.write(
            f"Imported {outcome.imported:,} of {outcome.read:,} events into {outcome.rooms:,} rooms in {outcome.seconds:.1f} s "
            f"({spark}{rate:,.0f} events/s)."
        )
        if outcome.unresolved:
            self.stderr.write(
                f"The state is not known at {outcome.unresolved:,} of them, because events below them are missing."
            )
        if outcome.quarantined:
            self._show_quarantine(outcome)

    def _show_quarantine(self, outcome: Any) -> None:
        alias = stream_settings().database
        lines = QuarantinedLine.objects.using(alias).filter(job_id=outcome.job)
        self.stderr.write(
            f"Quarantined {outcome.quarantined:,} lines (table pipeline_quarantinedline, job {outcome.job}):"
        )
        for line in lines[:_MOST_SHOWN]:
            self.stderr.write(f"  {line.file}:{line.line}: {line.reason}: {line.detail}")
        connections[alias].close()
