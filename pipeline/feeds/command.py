"""Implements ``purge feeds``, a subject of the maintenance commands."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connections, transaction

from pipeline.feeds.write import drop_feeds
from streams.conf import stream_settings
from streams.maintenance.confirm import YES_HELP, confirm_deletion
from streams.maintenance.subjects import register

__all__ = ["PurgeFeeds", "register_feeds"]

_COUNT = """
SELECT (SELECT count(*) FROM events_feed WHERE %(user)s IS NULL OR user_id = %(user)s),
       (SELECT count(*) FROM events_feedentry WHERE %(user)s IS NULL OR user_id = %(user)s)
"""


class PurgeFeeds:
    """The maintenance command that deletes per-user feeds."""

    help = (
        "Delete per-user feeds, of all users or of one user: readers ask the rooms until there are feeds again; no answer "
        "changes. The reader that writes them may be at work. Example: purge feeds --user @alice:example.org"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("--user", metavar="USER", help="the feed of this user only")
        parser.add_argument("--dry-run", action="store_true", help="only say how much would be deleted")
        parser.add_argument("--yes", action="store_true", help=YES_HELP)
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Deletes all feeds, or none in a dry run. Prints how many feeds and entries there were before and after."""
        user, is_dry = options["user"], options["dry_run"]
        if not is_dry:
            confirm_deletion(command, lambda: [_words(*_purge(user, is_dry=True), is_dry=True)], is_sure=options["yes"])
        before, after = _purge(user, is_dry=is_dry)
        if options["json"]:
            outcome = {"feeds": before[0], "entries": before[1], "feeds_left": after[0], "entries_left": after[1]}
            command.stdout.write(json.dumps({**outcome, "dry_run": is_dry}))
        else:
            command.stdout.write(_words(before, after, is_dry=is_dry))


def _purge(user: str | None, *, is_dry: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Deletes the feeds unless it is a dry run. Returns (feeds, entries) before, and the same after.

    They are counted and deleted in the same transaction.
    """
    using = stream_settings().database
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        before = _counts(cursor, user)
        if not is_dry:
            drop_feeds(cursor, user)
        return before, _counts(cursor, user)


def _words(before: tuple[int, int], after: tuple[int, int], *, is_dry: bool) -> str:
    if is_dry:
        return f"{before[0]} feeds with {before[1]} entries would be deleted"
    return f"feeds: {before[0]} -> {after[0]}, entries: {before[1]} -> {after[1]}"


def register_feeds() -> None:
    """Registers ``feeds`` as a subject of the command ``purge`` (``manage.py purge feeds``)."""
    register("purge", "feeds", PurgeFeeds())


def _counts(cursor: Any, user: str | None) -> tuple[int, int]:
    cursor.execute(_COUNT, {"user": user})
    feeds, entries = cursor.fetchone()
    return feeds, entries
