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
from streams.maintenance.confirm import YES_HELP, confirm_deletion
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
        parser.add_argument("--yes", action="store_true", help=YES_HELP)
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Deletes the statistics, or counts their rows in a dry run. Prints the counts."""
        is_dry = options["dry_run"]
        if not is_dry:
            confirm_deletion(command, lambda: [_words(_purge(is_dry=True), is_dry=True)], is_sure=options["yes"])
        rows = _purge(is_dry=is_dry)
        told = json.dumps({"rows": rows, "dry_run": is_dry}) if options["json"] else _words(rows, is_dry=is_dry)
        command.stdout.write(told)


def _purge(*, is_dry: bool) -> dict[str, int]:
    """Deletes the rows of all tables of statistics unless it is a dry run. Returns their numbers: table -> rows.

    The row of the statistics in the ledger is locked during the deletion. So no batch is applied meanwhile.
    """
    using = stream_settings().database
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        if not is_dry:
            hold_ledger(cursor, STATISTICS)
        rows = {table.removeprefix("pipeline_"): _count(cursor, table) for table in _TABLES}
        if not is_dry:
            for table in _TABLES:
                cursor.execute(f"DELETE FROM {table}")
            cursor.execute(_FORGET_PLACE, {"query": STATISTICS})
            rewind_cursors(cursor, READER)
    return rows


def _words(rows: Mapping[str, int], *, is_dry: bool) -> str:
    said = "would be deleted" if is_dry else "are deleted; manage.py pipeline run counts again"
    return f"{sum(rows.values()):,} rows of statistics {said}"


def register_statistics() -> None:
    """Registers the subject ``statistics`` of ``purge``."""
    register("purge", STATISTICS, PurgeStatistics())


def _count(cursor: Any, table: str) -> int:
    cursor.execute(f"SELECT count(*) FROM {table}")
    found: int = cursor.fetchone()[0]
    return found
