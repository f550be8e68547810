"""Describes a purge in one sentence (pure).

The page that asks for confirmation, the job's log and the terminal show it. The functions take a job's checked
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streams.runtime.moments import moment_text
from streams.runtime.text import printable

__all__ = ["archive_words", "history_words", "room_words", "scope_words"]


def scope_words(told: Mapping[str, Any]) -> str:
    """Returns a text that says which messages are purged, such as ``messages before 22 Nov 2026 02:00 UTC``."""
    if "before_time" in told:
        which = f"before {moment_text(told['before_time'])}"
    elif "before" in told:
        which = f"below event {printable(told['before'])}"
    else:
        which = f"below token {printable(told['before_token'])}"
    return f"messages {which}{', those of this server too' if told['delete_local'] else ''}"


def archive_words(told: Mapping[str, Any], folder: str | None = None) -> str:
    """Returns a text that says where the archive is, or ``no archive``.

    If ``folder`` is given, the archive was written there. Otherwise it is still to be written.
    """
    if told["archive"] is None:
        return "no archive"
    return f"archived in {printable(folder)}" if folder is not None else f"archive in {printable(told['archive'])}"


def history_words(told: Mapping[str, Any], deleted: int, outliers: int, folder: str | None = None) -> str:
    """Returns the sentence that describes a purge of history.

    For example ``messages before 22 Nov 2026 02:00 UTC: 1,833 deleted, 4,819 kept as outliers; no archive``.
    """
    verb = "would be deleted" if told["dry_run"] else "deleted"
    return f"{scope_words(told)}: {deleted:,} {verb}, {outliers:,} kept as outliers; {archive_words(told, folder)}"


def room_words(told: Mapping[str, Any], events: int, folder: str | None = None) -> str:
    """Returns the sentence that describes a purge of a whole room."""
    verb = "would be deleted" if told["dry_run"] else "deleted"
    blocked = ", and not made again" if told["block"] else ""
    return f"the whole room with {events:,} events: {verb}{blocked}; {archive_words(told, folder)}"
