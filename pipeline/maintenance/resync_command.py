"""``resync state|visibility|extremities|positions|caches|feeds`` and ``resync user``: subjects of the command ``resync``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from events.errors import EventsError
from events.integrity.compare import EVERYTHING, SUBJECTS
from events.sync.sync import resync_user
from pipeline.errors import PipelineError, UnusableArguments
from pipeline.jobs.run import register as register_kind
from pipeline.jobs.run import run_job
from pipeline.maintenance.resync import RESYNC, WHAT, ResyncKind
from pipeline.spark.masters import given_master
from streams.conf import stream_settings
from streams.maintenance.subjects import register

__all__ = ["Resync", "ResyncUser", "register_resyncs"]

_ON_SPARK = (*SUBJECTS, EVERYTHING)
_HELP = {
    "state": "events' columns and verdicts, edges, auth events, states, current state, redactions and flags",
    "extremities": "the leaves and gaps of the graph",
    "visibility": "who sees what",
    "rooms": "state, extremities and visibility in one pass",
    "positions": "sequences of streams that are behind their tables or stored positions",
    "caches": "what processes keep of rooms: it is dropped everywhere",
    "feeds": "per-user feeds",
}


class Resync:
    """One subject, as a job."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.help = (
            f"Compare and mend {_HELP[what]}. Each room is a transaction of its own, beside writers; what cannot be known is "
            f"told and left. Exit status 1 when something is wrong at the end. Example: resync {what} --dry-run"
            + ("" if what == "positions" else " --all")
        )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        if self._what != "positions":
            parser.add_argument("rooms", nargs="*", metavar="ROOM", help="these rooms")
            parser.add_argument("--all", action="store_true", help="all rooms")
        if self._what in _ON_SPARK:
            parser.add_argument(
                "--master",
                type=given_master,
                metavar="URL",
                help="work on Spark, at this master (only when there is much to do, at the site's)",
            )
            parser.add_argument(
                "--resume", action="store_true", help="go on with the run of these options that was killed or failed"
            )
        parser.add_argument("--dry-run", action="store_true", help="only compare")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """As a job; tells its summary."""
        arguments: dict[str, Any] = {"what": self._what, "dry_run": options["dry_run"]}
        if self._what in _ON_SPARK:
            arguments["master"] = options["master"]
        if self._what != "positions":
            if bool(options["rooms"]) == options["all"]:
                raise CommandError("Name rooms, or give --all.", returncode=2)
            arguments["rooms"] = options["rooms"] or None
        stream: Any = command.stderr  # a file in all that is used
        try:
            summary = run_job(RESYNC, arguments, stream=stream, resume=options.get("resume", False))
        except UnusableArguments as error:
            raise CommandError(str(error), returncode=2) from error
        except (EventsError, PipelineError) as error:
            raise CommandError(str(error), returncode=1) from error
        for line in [json.dumps(summary, ensure_ascii=False)] if options["json"] else _lines(summary):
            command.stdout.write(line)
        if summary.get("unknown"):
            raise CommandError(f"There is no room {', '.join(summary['unknown'][:5])}.", returncode=2)
        if summary["left"]:
            raise CommandError(f"resync {self._what}: {summary['left']} differences are left.", returncode=1)


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    for found in summary.get("differences", ()):
        about = f"{found['table']} {found['key']} {found['column']}"
        yield f"{found['room_id']}: {about}: {found['stored']!r} -> {found['computed']!r}"
    before, after = summary.get("before", {}), summary.get("after", {})
    for name, count in sorted(before.items()):
        yield f"{name}: {count} -> {after.get(name, 0 if isinstance(count, int) else 'ok')}"
    if "rooms" in summary:
        wrong = f", {summary['rooms_wrong']} differed" if "rooms_wrong" in summary else ""
        yield f"resync {summary['what']}: {summary['rooms']} rooms{wrong}"
    elif not before:
        yield f"resync {summary['what']}: nothing differs"


class ResyncUser:
    """The next answer to a user is a full one."""

    help = "Make the next sync answer to each token of a user a full one. Example: resync user @alice:example.org"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("user", metavar="USER", help="the user")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """A fact of the stream ``caches``."""
        user = options["user"]
        try:
            position = resync_user(user, stream_settings().database)
        except EventsError as error:
            raise CommandError(str(error), returncode=2) from error
        told = {"user": user, "position": position}
        text = f"{user}: tokens from before caches {position} get a full answer"
        command.stdout.write(json.dumps(told) if options["json"] else text)


def register_resyncs() -> None:
    """Make the kind of job and the subjects known."""
    register_kind(RESYNC, ResyncKind())
    for what in WHAT:
        register("resync", what, Resync(what))
    register("resync", "user", ResyncUser())
