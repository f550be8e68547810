"""``purge history`` and ``purge orphans`` as jobs, and as subjects of the command ``purge``.

The work is done in ``events.purging`` and ``events.group_purging``; here it is a row with progress and figures before and after.
After each transaction the job rests half as long again as that took, so it takes two fifths of a core at most.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from django.core.management.base import BaseCommand, CommandError

from events.errors import BadToken, EventsError, PurgeRefused
from events.group_purging import GroupPurge, GroupsPurged, plan_groups, rooms_with_groups
from events.purging import (
    HistoryPurged,
    PurgeRequest,
    count_purged,
    cut_at_event,
    cut_at_time,
    cut_at_token,
    foresee_history,
    only_purge,
    purge_events,
    room_figures,
)
from events.reading import timeline_place
from events.retention import retention_cuts
from pipeline.errors import JobCancelled, UnusableArguments
from pipeline.job_runs import JobRun, run_job
from pipeline.job_runs import register as register_kind
from pipeline.kinds import only
from streams.maintenance import register

__all__ = [
    "PurgeHistory",
    "PurgeHistoryKind",
    "PurgeOrphans",
    "PurgeOrphansKind",
    "PurgeRetention",
    "PurgeRetentionKind",
    "register_purges",
]

HISTORY, ORPHANS, RETENTION = "purge history", "purge orphans", "purge retention"
_CUTS = ("before", "before_time", "before_token")
_LATEST = 2**63 - 1
_REST = 1.5
"""Seconds of rest for each second of work."""
_LONGEST_REST = 1.5
Step = TypeVar("Step")


def _resting(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, each followed by a rest."""
    began = time.monotonic()
    for step in steps:
        yield step
        time.sleep(min(_REST * (time.monotonic() - began), _LONGEST_REST))
        began = time.monotonic()


# --- history ----------------------------------------------------------------------------------------------------------


class PurgeHistoryKind:
    """Purges a room's history below an event, a time or a token."""

    help = "Delete a room's messages below an event, a time or a token, and the state groups that nothing needs then."

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``room``; one of ``before`` (event), ``before_time`` (ms), ``before_token``; ``delete_local``, ``dry_run``."""
        only(arguments, "room", *_CUTS, "delete_local", "dry_run")
        room = arguments.get("room")
        if not isinstance(room, str) or not room:
            raise UnusableArguments("room must be the ID of a room.")
        given = {name: arguments[name] for name in _CUTS if arguments.get(name) is not None}
        if len(given) != 1:
            raise UnusableArguments(f"Give one of {', '.join(_CUTS)}.")
        _check_cut(*given.items())
        flags = {name: bool(arguments.get(name, False)) for name in ("delete_local", "dry_run")}
        return {"room": room, **given, **flags}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Events first, then state groups."""
        told, using = run.arguments, run.using
        request = PurgeRequest(told["room"], _cut(told, using), told["delete_local"], using)
        with only_purge(request.room_id, using):
            before = room_figures(request.room_id, using)
            run.note_before(before)
            purge = _foresee if told["dry_run"] else _carry_out
            events, groups, after = purge(run, request, before)
            run.note_after(after)
        return {
            "room_id": request.room_id,
            "cut": request.cut,
            "dry_run": told["dry_run"],
            "deleted": events.deleted,
            "became_outliers": events.became_outliers,
            "leaves_removed": events.leaves,
            "state_groups_deleted": groups.groups,
            "state_rows_deleted": groups.rows,
            "state_groups_left": groups.left,
            "tables": {table: [count, after[table]] for table, count in before.items()},
        }


def _check_cut(cut: tuple[str, Any]) -> None:
    name, value = cut
    if name == "before_time":
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LATEST:
            raise UnusableArguments(f"before_time must be milliseconds since 1970, not {value!r:.100}.")
    elif not isinstance(value, str):
        raise UnusableArguments(f"{name} must be text, not {value!r:.100}.")
    elif name == "before_token":
        try:
            timeline_place(value)
        except BadToken as error:
            raise UnusableArguments(str(error)) from error


def _cut(arguments: Mapping[str, Any], using: str) -> int:
    room = arguments["room"]
    if "before" in arguments:
        return cut_at_event(room, arguments["before"], using)
    if "before_time" in arguments:
        return cut_at_time(room, arguments["before_time"], using)
    return cut_at_token(room, arguments["before_token"], using)


Outcome = tuple[HistoryPurged, GroupsPurged, Mapping[str, int]]


def _foresee(run: JobRun, request: PurgeRequest, before: Mapping[str, int]) -> Outcome:
    events, changed = foresee_history(request)
    groups = GroupPurge(request.room_id, run.using, plan_groups(request.room_id, run.using, request.cut)).foresee()
    return events, groups, {**before, **changed, **_groups_after(before, groups)}


def _carry_out(run: JobRun, request: PurgeRequest, before: Mapping[str, int]) -> Outcome:
    events = HistoryPurged()
    with run.stage("events", count_purged(request), "events") as count:
        for events in _resting(purge_events(request)):
            count.add(events.deleted + events.became_outliers - count())
    groups = _purge_groups(run, [request.room_id])
    return events, groups, room_figures(request.room_id, run.using)


def _purge_groups(run: JobRun, room_ids: Iterable[str]) -> GroupsPurged:
    total = GroupsPurged()
    for room_id in room_ids:
        purge = GroupPurge(room_id, run.using, plan_groups(room_id, run.using))
        with run.stage("state groups", purge.total, "groups") as count:
            for done in _resting(purge.carry_out()):
                count.add(done.groups - count())
        _add(total, purge.done)
    return total


def _add(total: GroupsPurged, one: GroupsPurged) -> None:
    total.groups += one.groups
    total.rows += one.rows
    total.left += one.left


def _groups_after(before: Mapping[str, int], groups: GroupsPurged) -> dict[str, int]:
    return {
        "state_stategroup": before["state_stategroup"] - groups.groups,
        "state_stategroupdelta": before["state_stategroupdelta"] - groups.rows,
    }


# --- orphans ----------------------------------------------------------------------------------------------------------


class PurgeOrphansKind:
    """Deletes state groups that nothing needs."""

    help = "Delete the state groups that no event needs, of one room or of all; never stores more rows than before."

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``room``: this one only; ``dry_run``: only count."""
        only(arguments, "room", "dry_run")
        room = arguments.get("room")
        if room is not None and not isinstance(room, str):
            raise UnusableArguments("room must be the ID of a room.")
        return {"room": room, "dry_run": bool(arguments.get("dry_run", False))}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Room by room."""
        told, using = run.arguments, run.using
        rooms = [told["room"]] if told["room"] is not None else rooms_with_groups(using)
        done = GroupsPurged()
        if told["dry_run"]:
            for room_id in rooms:
                _add(done, GroupPurge(room_id, using, plan_groups(room_id, using)).foresee())
        else:
            done = _purge_groups(run, rooms)
        return {
            "rooms": len(rooms),
            "dry_run": told["dry_run"],
            "state_groups_deleted": done.groups,
            "state_rows_deleted": done.rows,
            "state_groups_left": done.left,
        }


# --- retention --------------------------------------------------------------------------------------------------------


class PurgeRetentionKind:
    """Purges what rooms have kept for long enough."""

    help = "Delete the messages that rooms have kept for long enough, by m.room.retention and the site's settings."

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``dry_run``: only count."""
        only(arguments, "dry_run")
        return {"dry_run": bool(arguments.get("dry_run", False))}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Room by room; one that is being purged already is left for the next time."""
        dry, rooms, busy = run.arguments["dry_run"], 0, list[str]()
        deleted = outliers = groups = 0
        for room_id, cut in retention_cuts(time.time_ns() // 1_000_000, run.using):
            request = PurgeRequest(room_id, cut, delete_local=True, using=run.using)
            try:
                with only_purge(room_id, run.using):
                    events, gone, _ = (_foresee if dry else _carry_out)(run, request, room_figures(room_id, run.using))
            except PurgeRefused:
                busy.append(room_id)
                continue
            rooms += bool(events.deleted or events.became_outliers)
            deleted, outliers, groups = (
                deleted + events.deleted,
                outliers + events.became_outliers,
                groups + gone.groups,
            )
        return {
            "rooms": rooms,
            "dry_run": dry,
            "deleted": deleted,
            "became_outliers": outliers,
            "state_groups_deleted": groups,
            "busy": busy[:100],
        }


# --- the command ------------------------------------------------------------------------------------------------------


class _Telling(Protocol):
    def __call__(self, summary: Mapping[str, Any]) -> Iterable[str]:
        """Lines for a person."""


class _AsJob:
    """A subject that runs a job and tells its summary."""

    kind = ""

    def _run(self, command: BaseCommand, arguments: Mapping[str, Any], tell: _Telling, *, as_json: bool) -> None:
        stream: Any = command.stderr  # a file in all that is used
        try:
            summary = run_job(self.kind, arguments, stream=stream)
        except UnusableArguments as error:
            raise CommandError(str(error), returncode=2) from error
        except (EventsError, JobCancelled) as error:
            raise CommandError(str(error), returncode=1) from error
        for line in [json.dumps(summary)] if as_json else tell(summary):
            command.stdout.write(line)


class PurgeHistory(_AsJob):
    """``purge history``."""

    kind = HISTORY
    help = (
        "Delete a room's messages below an event, a time or a token; state events stay as outliers, and messages of this server "
        "unless --delete-local is given. Then state groups that nothing needs go. Safe beside writers and readers; may be "
        "interrupted and repeated. Example: purge history '!room:site' --before-time 1700000000000 --dry-run"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("room", metavar="ROOM", help="the room")
        cut = parser.add_mutually_exclusive_group(required=True)
        cut.add_argument("--before", metavar="EVENT", help="everything of less depth than this event; that stays")
        cut.add_argument("--before-time", type=int, metavar="MS", help="the same of the last event before this time")
        cut.add_argument(
            "--before-token", metavar="TOKEN", help="the same of the place of a timeline token (t412-90321)"
        )
        parser.add_argument("--delete-local", action="store_true", help="messages of this server go, too")
        parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """As a job."""
        names = ("room", *_CUTS, "delete_local", "dry_run")
        self._run(command, {name: options[name] for name in names}, _history_lines, as_json=options["json"])


class PurgeOrphans(_AsJob):
    """``purge orphans``."""

    kind = ORPHANS
    help = (
        "Delete the state groups that no event needs, and merge what stands between those that stay; never stores more rows than "
        "before. Safe beside writers and readers; may be interrupted and repeated. Example: purge orphans --dry-run"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--room", metavar="ROOM", help="of this room only")
        parser.add_argument("--dry-run", action="store_true", help="only say how much would be deleted")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """As a job."""
        arguments = {"room": options["room"], "dry_run": options["dry_run"]}
        self._run(command, arguments, _orphan_lines, as_json=options["json"])


class PurgeRetention(_AsJob):
    """``purge retention``."""

    kind = RETENTION
    help = (
        "Delete the messages that rooms have kept for long enough: m.room.retention in their current state, "
        "REPLSITE_RETENTION_DEFAULT_SECONDS elsewhere. State stays. Safe beside writers and readers; may be interrupted and "
        "repeated. Example: purge retention --dry-run"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--dry-run", action="store_true", help="only say how much would be deleted")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """As a job."""
        self._run(command, {"dry_run": options["dry_run"]}, _retention_lines, as_json=options["json"])


def _retention_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    verb = "would be deleted" if summary["dry_run"] else "deleted"
    yield (
        f"{summary['rooms']} rooms: {summary['deleted']} events {verb}, {summary['became_outliers']} kept as outliers, "
        f"{summary['state_groups_deleted']} state groups {verb}"
    )
    for room_id in summary["busy"]:
        yield f"{room_id} is being purged already, or may not be cut; left as it is"


def _history_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    verb = "would be deleted" if summary["dry_run"] else "deleted"
    yield (
        f"{summary['room_id']}: below depth {summary['cut']} {summary['deleted']} events {verb}, "
        f"{summary['became_outliers']} kept as outliers"
    )
    for table, (before, after) in summary["tables"].items():
        yield f"{table}: {before} -> {after} rows"
    yield from _left(summary)


def _orphan_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    verb = "would be deleted" if summary["dry_run"] else "deleted"
    yield (
        f"{summary['rooms']} rooms: {summary['state_groups_deleted']} state groups and {summary['state_rows_deleted']} "
        f"of their rows {verb}"
    )
    yield from _left(summary)


def _left(summary: Mapping[str, Any]) -> Iterator[str]:
    if summary["state_groups_left"]:
        yield f"{summary['state_groups_left']} state groups came into use meanwhile and stay"


def register_purges() -> None:
    """Make kinds and subjects known."""
    register_kind(HISTORY, PurgeHistoryKind())
    register_kind(ORPHANS, PurgeOrphansKind())
    register("purge", "history", PurgeHistory())
    register("purge", "orphans", PurgeOrphans())
    register_kind(RETENTION, PurgeRetentionKind())
    register("purge", "retention", PurgeRetention())
