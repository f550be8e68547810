"""What a purge deletes, in one sentence: for the page that asks, the job's log and the terminal (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streams.runtime.moments import moment_text
from streams.runtime.text import printable

__all__ = ["archive_words", "history_words", "room_words", "scope_words"]


def scope_words(told: Mapping[str, Any]) -> str:
    """Which messages: ``messages before 22 Nov 2026 02:00 UTC``. Takes a job's checked arguments."""
    if "before_time" in told:
        which = f"before {moment_text(told['before_time'])}"
    elif "before" in told:
        which = f"below event {printable(told['before'])}"
    else:
        which = f"below token {printable(told['before_token'])}"
    return f"messages {which}{', those of this server too' if told['delete_local'] else ''}"


def archive_words(told: Mapping[str, Any], folder: str | None = None) -> str:
    """Where the archive is, or is going to be."""
    if told["archive"] is None:
        return "no archive"
    return f"archived in {printable(folder)}" if folder is not None else f"archive in {printable(told['archive'])}"


def history_words(told: Mapping[str, Any], deleted: int, outliers: int, folder: str | None = None) -> str:
    """``messages before 22 Nov 2026 02:00 UTC: 1,833 deleted, 4,819 kept as outliers; no archive``."""
    verb = "would be deleted" if told["dry_run"] else "deleted"
    return f"{scope_words(told)}: {deleted:,} {verb}, {outliers:,} kept as outliers; {archive_words(told, folder)}"


def room_words(told: Mapping[str, Any], events: int, folder: str | None = None) -> str:
    """The same of a whole room."""
    verb = "would be deleted" if told["dry_run"] else "deleted"
    blocked = ", and not made again" if told["block"] else ""
    return f"the whole room with {events:,} events: {verb}{blocked}; {archive_words(told, folder)}"
