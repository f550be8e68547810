"""``room export``: writes rooms, events, state and memberships to Parquet files (``pipeline.export``).

A user who may queue jobs need not have the right to write everywhere. So a queued export is written to a folder below
``exports`` in the pipeline's own folder. Its argument ``folder`` is relative to ``exports``. The command ``room export``
runs with the rights of its user, so it may write to any folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from events.arguments import can_be_stored
from events.maintenance.room_arguments import ROOMS, SEARCHED
from pipeline.export.folder import exports_folder
from pipeline.export.tables import MOST_BUCKETS, TABLES
from pipeline.spark.arguments import master as spark_master
from streams.jobs.arguments import JSON, Argument, Type
from streams.jobs.errors import UnusableArguments
from streams.jobs.folders import is_any_folder
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, Words, operation

__all__ = ["Export"]

_MOST_ROOMS = 10_000
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_EPOCH = date(1970, 1, 1).toordinal()


def _folder(name: str, value: Any) -> str:
    if is_any_folder():
        return str(Path(value).absolute())
    if isinstance(value, str) and _FOLDER.fullmatch(value):
        return value
    raise UnusableArguments(
        f"{name} must be the name of a folder, of letters, digits, '.', '_' and '-', not {value!r:.200}; it is made in "
        f"{exports_folder()}."
    )


def _room_ids(_: str, value: Any) -> list[str]:
    rooms: list[str] = ROOMS.value({ROOMS.name: value})
    if not rooms or not all(map(can_be_stored, rooms)):
        raise UnusableArguments("rooms must be a list of room IDs.")
    if len(rooms) > _MOST_ROOMS:
        raise UnusableArguments(
            f"{len(rooms):,} rooms; at most {_MOST_ROOMS:,} can be named. Export all, or several times."
        )
    return rooms


@operation
class Export(Operation):
    name = "export"
    help = "Write rooms, events, state and memberships to Parquet files, all of one moment, in a folder below exports."
    arguments = (
        Argument(
            "to", Type.TEXT, "where to; on a cluster one that all workers see", typed="FOLDER", required=True,
            check=_folder, in_form="the name of a folder, which is made below exports",
        ),
        Argument(
            "tables", Type.CHOICES, f"these only: {', '.join(TABLES)}", typed="TABLE", choices=tuple(TABLES),
            default=lambda: list(TABLES), in_form="none: all",
        ),
        Argument(
            "rooms", Type.LINES, "of this room only; may be repeated", typed="--room ROOM", check=_room_ids,
            in_form=ROOMS.in_form, attributes=SEARCHED,
        ),
        Argument(
            "since", Type.DAY, "from this day on, by the events' own clocks (2026-01-31, or 30d ago)",
            typed="--since DAY", in_form="events of this day and later ones",
        ),
        Argument("until", Type.DAY, "before this day", typed="--until DAY", in_form="events before this day"),
        Argument(
            "buckets", Type.WHOLE, f"put the rooms into so many buckets (1 to {MOST_BUCKETS})", typed="--buckets N",
            bounds=(1, MOST_BUCKETS), in_form="parts that rooms are divided into; none: as many as fit",
        ),
        Argument(
            "overwrite", Type.FLAG, "replace tables that the folder has already",
            in_form="what is there already goes",
        ),
        spark_master("Spark master, e.g. local[4] or spark://host:7077", stored=False),
        JSON,
    )  # fmt: skip
    commands = (
        Words(
            "room export",
            "Write rooms, events, state and memberships to Parquet files, by rooms and days, all of one moment; of redacted "
            "events what the redaction left.",
            "room export /data/export events --room '!room:example.org' --since 2026-01-01",
        ),
    )

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Exports to a folder below ``exports``. Refuses a folder that is a symbolic link."""
        folder = exports_folder() / run.arguments["to"]
        if folder.is_symlink():
            raise UnusableArguments(f"{folder} is a link. Name a folder.")
        return _export(run, folder, None)

    def work_for(self, options: Mapping[str, Any]) -> Callable[[JobRun], Mapping[str, Any]]:
        """The command writes to any folder, with any Spark master."""
        return lambda run: _export(run, Path(run.arguments["to"]), options["master"])

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        for name, table in summary["tables"].items():
            yield f"{name}: {table['rows']:,} rows in {table['files']:,} files, {table['bytes']:,} bytes"
        yield f"written to {summary['folder']}"


def _day(text: str | None) -> int | None:
    """Converts an ISO date to days since 1970."""
    # Users' texts go through `streams.runtime.moments` where the argument is checked (`Type.DAY`). What is read here is
    # the result, as it is stored with the job: always an ISO date, and the day of an age is settled.
    return None if text is None else date.fromisoformat(text).toordinal() - _EPOCH


def _export(run: JobRun, folder: Path, master: str | None) -> Mapping[str, Any]:
    from pipeline.export.write_tables import ExportRequest, export_tables  # noqa: PLC0415 - needs pyspark

    given = run.arguments
    request = ExportRequest(
        folder=folder.absolute(),
        tables=given["tables"],
        rooms=given["rooms"],
        since=_day(given["since"]),
        until=_day(given["until"]),
        buckets=given["buckets"],
        overwrite=given["overwrite"],
        master=master,
    )
    manifest = export_tables(run, request)
    run.store_after({name: table["rows"] for name, table in manifest["tables"].items()})
    return {"folder": str(request.folder), "made_at_ms": manifest["made_at_ms"], "tables": manifest["tables"]}
