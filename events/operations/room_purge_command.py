"""``room purge``: ``purge history`` of a room, or with ``--whole`` ``purge room``. No operation: it chooses between two."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from events.operations.purge_history import PurgeHistory
from events.operations.purge_room import PurgeRoom
from streams.jobs.arguments import Argument, Type, add_options
from streams.jobs.command import CommandLine, JobLine, command_line

_CUT = next(a.one_of for a in PurgeHistory.arguments if a.name == "before")
_WHOLE = Argument("whole", Type.FLAG, "the room whole, from every table", stored=False, one_of=_CUT)


@command_line
class RoomPurgeCommand(CommandLine):
    """Purges a room's history, or the room."""

    words = "room purge"
    about = (
        "Delete a room's messages below an event, a time or a token; or the room whole. It asks before, and tells what would go "
        "with --dry-run. Safe beside writers and readers; may be interrupted and repeated."
    )
    example = "room purge '!room:site' --before-time 30d --dry-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        of_history = {a.name: a for a in PurgeHistory.arguments}
        of_room = {a.name: a for a in PurgeRoom.arguments if a.name != "unblock"}
        cut = [a for a in of_history.values() if a.one_of is _CUT]
        others = [a for a in (of_history | of_room).values() if a.one_of is not _CUT]
        add_options(parser, [others[0], *cut, _WHOLE, *others[1:]])

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        used, other = (PurgeRoom, PurgeHistory) if options["whole"] else (PurgeHistory, PurgeRoom)
        names = {a.name for a in used.arguments}
        for argument in other.arguments:
            if argument.name not in names and argument.type is Type.FLAG and options.get(argument.name):
                when = "goes without" if options["whole"] else "needs"
                raise CommandError(f"--{argument.name.replace('_', '-')} {when} --whole.", returncode=2)
        JobLine(used(), used.commands[0]).run(command, options)
