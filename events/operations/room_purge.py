"""``room purge``: ``purge history`` of a room, or with ``--whole`` ``purge room``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from events.operations.purge_history import PurgeHistory
from events.operations.purge_room import PurgeRoom
from streams.jobs.arguments import Argument, Type, add_options
from streams.jobs.command import CommandLine, JobLine, command_line

__all__ = ["RoomPurge"]

_CUT = next(one.one_of for one in PurgeHistory.arguments if one.name == "before")
_WHOLE = Argument("whole", Type.FLAG, "the room whole, from every table", stored=False, one_of=_CUT)


@command_line
class RoomPurge(CommandLine):
    """Purges a room's history, or the room."""

    words = "room purge"
    about = (
        "Delete a room's messages below an event, a time or a token; or the room whole. It asks before, and tells what would go "
        "with --dry-run. Safe beside writers and readers; may be interrupted and repeated."
    )
    example = "room purge '!room:site' --before-time 30d --dry-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        of_history = {one.name: one for one in PurgeHistory.arguments}
        of_room = {one.name: one for one in PurgeRoom.arguments if one.name != "unblock"}
        cut = [one for one in of_history.values() if one.one_of is _CUT]
        others = [one for one in (of_history | of_room).values() if one.one_of is not _CUT]
        add_options(parser, [others[0], *cut, _WHOLE, *others[1:]])

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        used, other = (PurgeRoom, PurgeHistory) if options["whole"] else (PurgeHistory, PurgeRoom)
        taken = {one.name for one in used.arguments}
        for one in other.arguments:
            if one.name not in taken and one.type is Type.FLAG and options.get(one.name):
                when = "goes without" if options["whole"] else "needs"
                raise CommandError(f"--{one.name.replace('_', '-')} {when} --whole.", returncode=2)
        JobLine(used(), used.commands[0]).run(command, options)
