"""Subjects of the maintenance commands: the ``WHAT`` of ``purge WHAT`` and ``resync WHAT``.

While Django loads an app, the app's ``AppConfig.ready`` names the function that registers the subjects of the app. This
function is called when a command first asks for subjects. All maintenance commands share the class
``MaintenanceCommand``.
"""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError as DjangoDatabaseError

from streams.db import driver
from streams.errors import StreamError
from streams.runtime.command_line import EXIT_STATUS, HelpFormatter, SiteCommand
from streams.runtime.when_asked import WhenAsked

__all__ = ["MaintenanceCommand", "Subject", "asked_by", "register", "register_when_asked", "subjects"]


class Subject(Protocol):
    """One subject of a maintenance command: its arguments and its work."""

    #: The description, in sentences. The last sentence is ``Example: purge WHAT …``. The command shows it as an
    #: example.
    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the subject's command-line arguments."""

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Deletes or repairs what the subject stands for. Writes the outcome to the command's stdout and progress to its stderr.

        Raises ``CommandError`` if the subject's work could not be done.
        """


_subjects: dict[str, dict[str, Subject]] = {}
_fill = WhenAsked()


def register(command: str, what: str, subject: Subject) -> None:
    """Adds a subject to a maintenance command, under the name ``what``."""
    _subjects.setdefault(command, {})[what] = subject


def register_when_asked(function: str) -> None:
    """Stores the name of a function that registers subjects. The function is called when a command first asks for subjects."""
    _fill.add(function)


def subjects(command: str) -> Mapping[str, Subject]:
    """Returns the command's subjects as ``{name: subject}``, sorted by name."""
    _fill.call()
    return dict(sorted(_subjects.get(command, {}).items()))


def asked_by() -> str:
    """Returns the user and host that run this command. The text is stored in records of the command's changes."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user} on {socket.gethostname()}"


class MaintenanceCommand(SiteCommand):
    """The base class of ``manage.py purge`` and ``resync``, whose first argument is a subject.

    The exit status is 1 if the subject's work could not be done, and 2 for unusable arguments.
    """

    name = ""

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds one subparser of the command line for each subject of the command."""
        choices = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
        for what, subject in subjects(self.name).items():
            does, example = _parts_of_help(subject)
            chosen = choices.add_parser(
                what,
                help=does,
                description=does,
                epilog=f"example: manage.py {example}\n\n{EXIT_STATUS}",
                formatter_class=HelpFormatter,
            )
            subject.add_arguments(chosen)

    def help_examples(self) -> Sequence[tuple[str, str]]:
        """Returns a pair (example, first sentence of the help) for each subject."""
        parts = [_parts_of_help(subject) for subject in subjects(self.name).values()]
        return [(example, does.partition(". ")[0].rstrip(".")) for does, example in parts if example]

    def handle(self, *args: Any, **options: Any) -> None:
        """Runs the chosen subject. Stream and database errors become ``CommandError`` with exit status 1."""
        try:
            subjects(self.name)[options["what"]].run(self, options)
        except StreamError as error:
            raise CommandError(str(error), returncode=1) from error
        except (driver.DatabaseError, DjangoDatabaseError) as error:
            raise CommandError(driver.explain(error), returncode=1) from error


def _parts_of_help(subject: Subject) -> tuple[str, str]:
    """Splits the help of a subject. Returns (description, example)."""
    does, _, example = subject.help.partition(" Example: ")
    return does, example
