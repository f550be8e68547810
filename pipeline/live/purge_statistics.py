"""Implements ``purge statistics``, a subject of the maintenance commands."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connections, transaction

from pipeline.live.ledger import hold_ledger
from pipeline.live.statistics_table import STATISTICS
from pipeline.statistics.update import READER
from streams.conf import stream_settings
from streams.follow.cursors import rewind_cursors
from streams.maintenance.subjects import register

__all__ = ["PurgeStatistics", "register_statistics"]

_TABLES = ("pipeline_roomstatistics", "pipeline_serverstatistics", "pipeline_roomday", "pipeline_userday")
_FORGET_PLACE = "DELETE FROM pipeline_batchledger WHERE query = %(query)s"


class PurgeStatistics:
    """The maintenance command that deletes the statistics. The live pipeline then counts them again."""

    help = (
        "Delete the statistics of rooms, server and days: the live pipeline, which may be at work, counts again what the "
        "streams hold. What was purged from them, and who was active long ago, does not come back."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("--dry-run", action="store_true", help="only say how much would be deleted")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Counts the rows of all tables of statistics, and deletes them unless it is a dry run. Prints the counts.

        The row of the statistics in the ledger is locked during the deletion. So no batch is applied meanwhile.
        """
        using = stream_settings().database
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            if not options["dry_run"]:
                hold_ledger(cursor, STATISTICS)
            rows = {table.removeprefix("pipeline_"): _count(cursor, table) for table in _TABLES}
            if not options["dry_run"]:
                for table in _TABLES:
                    cursor.execute(f"DELETE FROM {table}")
                cursor.execute(_FORGET_PLACE, {"query": STATISTICS})
                rewind_cursors(cursor, READER)
        if options["json"]:
            command.stdout.write(json.dumps({"rows": rows, "dry_run": options["dry_run"]}))
            return
        said = "would be deleted" if options["dry_run"] else "are deleted; manage.py pipeline run counts again"
        command.stdout.write(f"{sum(rows.values()):,} rows of statistics {said}")


def register_statistics() -> None:
    """Registers the subject ``statistics`` of ``purge``."""
    register("purge", STATISTICS, PurgeStatistics())


def _count(cursor: Any, table: str) -> int:
    cursor.execute(f"SELECT count(*) FROM {table}")
    found: int = cursor.fetchone()[0]
    return found
