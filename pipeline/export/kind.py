"""Exports as jobs: what may be asked for, and the summary.

Whoever may queue a job need not be allowed to write everywhere: a queued export goes to a folder below ``exports`` in the
pipeline's own, named as it is seen from there. The command ``export`` runs as its user, without such a limit.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TextIO

from events.arguments import can_be_stored
from pipeline.conf import pipeline_settings
from pipeline.errors import UnusableArguments
from pipeline.export.tables import MOST_BUCKETS, TABLES
from pipeline.jobs.fields import ROOMS_FIELD, Entry, JobField
from pipeline.jobs.kinds import only
from pipeline.jobs.rows import begin_job, hold_lock
from pipeline.jobs.run import JobRun, carry_out, register
from streams.conf import stream_settings
from streams.runtime.moments import moment_ms

__all__ = ["EXPORT", "ExportKind", "checked_export", "export_lines", "register_exports", "run_export"]

EXPORT = "export"
_NAMES = ("tables", "rooms", "since", "until", "buckets", "overwrite")
_MOST_ROOMS = 10_000
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_EPOCH = date(1970, 1, 1).toordinal()


class ExportKind:
    """Writes tables to Parquet."""

    help = "Write rooms, events, state and memberships to Parquet files, all of one moment, in a folder below exports."
    fields = (
        JobField("to", Entry.TEXT, "the name of a folder, which is made below exports", required=True),
        JobField("tables", Entry.CHOICES, "none: all", choices=tuple(TABLES)),
        ROOMS_FIELD,
        JobField("since", Entry.DAY, "events of this day and later ones"),
        JobField("until", Entry.DAY, "events before this day"),
        JobField("buckets", Entry.NUMBER, "parts that rooms are divided into; none: as many as fit"),
        JobField("overwrite", Entry.FLAG, "what is there already goes"),
    )

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``to``: the folder's name; and, if they are given, what ``checked_export`` knows."""
        only(arguments, "to", *_NAMES)
        name = arguments.get("to")
        if not isinstance(name, str) or not _FOLDER.fullmatch(name):
            raise UnusableArguments(
                f"to must be the name of a folder, of letters, digits, '.', '_' and '-', not {name!r:.200}; it is made in "
                f"{_exports()}."
            )
        return {"to": name, **checked_export({key: arguments[key] for key in _NAMES if key in arguments})}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """The same export as the command's."""
        folder = _exports() / run.arguments["to"]
        if folder.is_symlink():
            raise UnusableArguments(f"{folder} is a link. Name a folder.")
        return _export(run, folder, None)


def _exports() -> Path:
    return pipeline_settings().folder / "exports"


def checked_export(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with all defaults filled in; raises ``UnusableArguments``.

    ``tables`` and ``rooms`` (all, if left out), ``since`` and ``until`` (days like 2026-01-31, ``until`` not included),
    ``buckets`` (as many as fit, if left out), ``overwrite``.
    """
    days = {name: arguments.get(name) for name in ("since", "until")}
    days = {name: None if day is None else _as_day(name, day) for name, day in days.items()}
    overwrite = arguments.get("overwrite", False)
    if not isinstance(overwrite, bool):
        raise UnusableArguments(f"overwrite must be true or false, not {overwrite!r:.100}.")
    rooms, buckets = arguments.get("rooms"), arguments.get("buckets")
    if rooms is not None:
        _check_rooms(rooms)
    if buckets is not None:
        _check_buckets(buckets)
    tables = _checked_tables(arguments.get("tables"))
    return {"tables": tables, "rooms": rooms, **days, "buckets": buckets, "overwrite": overwrite}


def _checked_tables(tables: object) -> list[str]:
    if tables is None:
        return list(TABLES)
    if not isinstance(tables, list) or not tables or not all(isinstance(t, str) and t in TABLES for t in tables):
        raise UnusableArguments(f"tables must be some of {', '.join(TABLES)}, not {tables!r:.200}.")
    return list(dict.fromkeys(tables))


def _check_buckets(buckets: object) -> None:
    if isinstance(buckets, bool) or not isinstance(buckets, int) or not 1 <= buckets <= MOST_BUCKETS:
        raise UnusableArguments(f"buckets must be a number from 1 to {MOST_BUCKETS}, not {buckets!r:.100}.")


def _check_rooms(rooms: object) -> None:
    if not isinstance(rooms, list) or not rooms or not all(isinstance(r, str) and can_be_stored(r) for r in rooms):
        raise UnusableArguments("rooms must be a list of room IDs.")
    if len(rooms) > _MOST_ROOMS:
        raise UnusableArguments(
            f"{len(rooms):,} rooms; at most {_MOST_ROOMS:,} can be named. Export all, or several times."
        )


def _as_day(name: str, text: object) -> str:
    """The day of a date, an age or milliseconds, as 2026-01-31: an age means the same when the job begins later."""
    try:
        if not isinstance(text, str) or ":" in text:
            raise ValueError
        found = datetime.fromtimestamp(moment_ms(text, time.time_ns() // 1_000_000) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise UnusableArguments(
            f"{name} must be a day such as 2026-01-31, or an age such as 30d, not {text!r:.100}."
        ) from None
    return found.date().isoformat()


def _day(text: str | None) -> int | None:
    """Days since 1970."""
    return None if text is None else date.fromisoformat(text).toordinal() - _EPOCH


def run_export(
    folder: Path, arguments: Mapping[str, Any], master: str | None = None, stream: TextIO | None = None
) -> Mapping[str, Any]:
    """Export to any folder as a job of this process; returns its summary. Raises what ``export_tables`` does."""
    checked = checked_export(arguments)
    using = stream_settings().database

    def work(run: JobRun) -> Mapping[str, Any]:
        return _export(run, folder, master)

    with hold_lock(using) as lock:
        job = begin_job(lock, EXPORT, {"to": str(folder), **checked}, using)
        return carry_out(job, using, stream or sys.stderr, work)


def _export(run: JobRun, folder: Path, master: str | None) -> Mapping[str, Any]:
    from pipeline.export.export import ExportRequest, export_tables  # noqa: PLC0415 - needs pyspark

    told = run.arguments
    request = ExportRequest(
        folder=folder.absolute(),
        tables=told["tables"],
        rooms=told["rooms"],
        since=_day(told["since"]),
        until=_day(told["until"]),
        buckets=told["buckets"],
        overwrite=told["overwrite"],
        master=master,
    )
    manifest = export_tables(run, request)
    run.note_after({name: table["rows"] for name, table in manifest["tables"].items()})
    return {"folder": str(request.folder), "made_at_ms": manifest["made_at_ms"], "tables": manifest["tables"]}


def export_lines(summary: Mapping[str, Any]) -> list[str]:
    """The outcome for a person."""
    return [
        f"{name}: {table['rows']:,} rows in {table['files']:,} files, {table['bytes']:,} bytes"
        for name, table in summary["tables"].items()
    ] + [f"written to {summary['folder']}"]


def register_exports() -> None:
    """Make the kind known."""
    register(EXPORT, ExportKind())
