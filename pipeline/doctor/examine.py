"""Examines a Synapse server's database in one snapshot, and returns the report. Runs without Django."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from pipeline.doctor.report import Report
from pipeline.doctor.server_database import ServerDatabase, server_database
from pipeline.doctor.server_streams import stream_findings, stream_states
from pipeline.doctor.sizes import measure

__all__ = ["examine"]

#: The time that the queries of the first part may take together, so that it ends within a minute.
_SECONDS = 50.0


def examine(
    dsn: str, say: Callable[[str], None], check_rooms: Callable[[ServerDatabase, Report], None] | None
) -> Report:
    """Returns the report on the database. ``say`` gets sentences about the progress.

    ``check_rooms``, if given, computes rooms again, and adds to the report. Raises ``UnusableSource`` and ``UnusableArguments``.
    """
    started = time.monotonic()
    with server_database(dsn, _SECONDS) as database:
        report = Report(database.name, database.schema, datetime.now(UTC).isoformat(timespec="seconds"))
        report.left_out = database.left_out
        say("Sequences and positions …")
        report.streams = stream_states(database)
        for finding in stream_findings(report.streams):
            report.add(finding)
        say("Tables, rooms and state groups …")
        _measure(database, report)
        if check_rooms is not None:
            database.without_limit()
            check_rooms(database, report)
        report.sort()
        report.seconds = round(time.monotonic() - started, 3)
        return report


def _measure(database: ServerDatabase, report: Report) -> None:
    sizes = measure(database)
    report.version, report.tables, report.sampled = sizes.version, sizes.tables, sizes.sampled
    report.rooms_total, report.rooms, report.empty_rooms = sizes.rooms_total, sizes.rooms, sizes.empty_rooms
    report.groups, report.piled_up, report.remedies = sizes.groups, sizes.piled_up, sizes.remedies
    report.background_updates = sizes.background_updates
    for finding in sizes.findings:
        report.add(finding)
