"""Describes a purge, or the removal of an archive or export, in one sentence (pure).

The sentence is shown on the page that asks for confirmation, in the job's log and on the terminal. ``told`` is a
mapping with a job's checked arguments, if a function does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streams.runtime.amounts import byte_size
from streams.runtime.moments import moment_text
from streams.runtime.text import safe_text

__all__ = ["archive_words", "folder_words", "history_words", "room_words", "scope_words"]


def scope_words(told: Mapping[str, Any]) -> str:
    """Returns a text that says which messages are purged, such as ``messages before 22 Nov 2026 02:00 UTC``."""
    if "before_time" in told:
        which = f"before {moment_text(told['before_time'])}"
    elif "before" in told:
        which = f"below event {safe_text(told['before'], None)}"
    else:
        which = f"below token {safe_text(told['before_token'], None)}"
    return f"messages {which}{', those of this server too' if told['delete_local'] else ''}"


def archive_words(told: Mapping[str, Any], folder: str | None = None) -> str:
    """Returns a text that says where the archive is, or ``no archive``.

    If ``folder`` is given, the archive was written to this folder. Otherwise the archive is still to be written.
    """
    if told["archive"] is None:
        return "no archive"
    return (
        f"archived in {safe_text(folder, None)}"
        if folder is not None
        else f"archive in {safe_text(told['archive'], None)}"
    )


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


def folder_words(told: Mapping[str, Any], *, is_room_here: bool) -> str:
    """Returns the sentence that describes the removal of an archive or export. ``told`` is the job's summary.

    For example ``archive of !a:b, made 22 Nov 2026 02:00 UTC, 6.0 GB in 14 files: removed; messages that were purged
    meanwhile are gone with it``. ``is_room_here`` is true if the room of the archive is in the database.
    """
    of_room = f" of {safe_text(told['room_id'], None)}" if told["room_id"] else ""
    made = "made" if told["what"] in ("archive", "export") else "last changed"
    size = f"{byte_size(told['bytes'])} in {told['files']:,} file{'' if told['files'] == 1 else 's'}"
    done = "would be removed" if told["dry_run"] else "removed"
    what = f"{told['what']}{of_room}, {made} {told['made_at']}, {size}: {done}"
    if told["what"] != "archive":
        return what
    lost = (
        "messages that were purged meanwhile are gone with it" if is_room_here else "the room is in no other place here"
    )
    return f"{what}; {lost}"
