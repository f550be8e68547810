"""Maintenance commands with several subjects: ``purge WHAT``, ``resync WHAT``. Each room adds its own subjects.

A room registers while Django loads it (``AppConfig.ready``); the command is the same for all.
"""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from collections.abc import Mapping
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError as DjangoDatabaseError

from streams import database
from streams.errors import StreamError

__all__ = ["MaintenanceCommand", "Subject", "asked_by", "register", "subjects"]


class Subject(Protocol):
    """One subject of a maintenance command."""

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its arguments."""

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Do it; writes to the command's stdout, progress to its stderr; ``CommandError`` when something is wrong."""


_subjects: dict[str, dict[str, Subject]] = {}


def register(command: str, what: str, subject: Subject) -> None:
    """Add a subject to a maintenance command."""
    _subjects.setdefault(command, {})[what] = subject


def subjects(command: str) -> Mapping[str, Subject]:
    """What the command can be asked for, by name."""
    return dict(sorted(_subjects.get(command, {}).items()))


def asked_by() -> str:
    """Who runs this command, for traces."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user} on {socket.gethostname()}"


class MaintenanceCommand(BaseCommand):
    """A command whose first argument is its subject. Exit status 1 for what could not be done, 2 for unusable arguments."""

    name = ""

    def add_arguments(self, parser: CommandParser) -> None:
        """One parser for each subject."""
        choices = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
        for what, subject in subjects(self.name).items():
            subject.add_arguments(choices.add_parser(what, help=subject.help, description=subject.help))

    def handle(self, *args: Any, **options: Any) -> None:
        """Hand over to the subject."""
        try:
            subjects(self.name)[options["what"]].run(self, options)
        except StreamError as error:
            raise CommandError(str(error), returncode=1) from error
        except (database.DatabaseError, DjangoDatabaseError) as error:
            raise CommandError(database.explain(error), returncode=1) from error
