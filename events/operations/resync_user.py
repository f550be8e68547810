"""``resync user``: the next sync of a user returns a full answer, whatever token the client sends."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from events.errors import EventsError
from events.sync.sync import resync_user
from streams.conf import stream_settings
from streams.jobs.arguments import JSON
from streams.jobs.command import CommandLine, command_line


@command_line
class ResyncUser(CommandLine):
    """Appends a fact to the stream ``caches`` and prints its position. Exits with status 2 for an invalid user ID."""

    words = "resync user"
    about = "Make the next sync answer to each token of a user a full one."
    example = "resync user @alice:example.org"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("user", metavar="USER", help="the user")
        JSON.add_to(parser)

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        user = options["user"]
        try:
            position = resync_user(user, stream_settings().database)
        except EventsError as error:
            raise CommandError(str(error), returncode=2) from error
        text = f"{user}: tokens from before caches {position} get a full answer"
        command.stdout.write(json.dumps({"user": user, "position": position}) if options["json"] else text)
