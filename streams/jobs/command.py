"""Runs jobs from the command line. A kind of job is a command, or a subject of the commands ``purge`` and ``resync``.

The options of the command are the arguments of the kind.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from streams.db import driver
from streams.errors import SiteError
from streams.jobs.arguments import DRY_RUN, YES, Argument, add_options
from streams.jobs.errors import UnknownKind, UnusableArguments
from streams.jobs.folders import any_folder
from streams.jobs.run import JobKind, run_job
from streams.maintenance.confirm import confirm_deletion
from streams.runtime.command_line import SiteCommand
from streams.runtime.text import safe_text

__all__ = ["JobCommand", "JobSubject", "as_command", "as_command_errors"]


@contextmanager
def as_command_errors() -> Iterator[None]:
    """Converts errors of the block to ``CommandError``, with exit status 2 for unusable arguments and 1 for other errors.

    An ``OSError`` is not converted. ``manage.py`` handles this error: for example, a command ends without a message if
    the process that reads the command's output closes the pipe.
    """
    try:
        yield
    except (UnusableArguments, UnknownKind) as error:
        raise CommandError(str(error), returncode=2) from error
    except SiteError as error:
        raise CommandError(str(error), returncode=1) from error
    except (DatabaseError, driver.DatabaseError) as error:
        raise CommandError(driver.explain(error), returncode=1) from error


@contextmanager
def as_command() -> Iterator[None]:
    """Runs the block with the rights of the process's user: jobs may name any folder.

    Converts errors to ``CommandError`` like ``as_command_errors``. Also converts an ``OSError``, with exit status 1.
    """
    with as_command_errors(), any_folder():
        try:
            yield
        except OSError as error:
            raise CommandError(str(error), returncode=1) from error


class JobSubject:
    """The command-line form of a kind of job. It declares the options, runs the job and prints the job's summary.

    If the kind of job has the option ``--yes``, the command asks for confirmation before the job deletes anything.
    """

    def __init__(self, kind: JobKind, help: str = "") -> None:
        self.kind = kind
        self.help = help

    @property
    def arguments(self) -> Sequence[Argument]:
        """The arguments that the command takes."""
        return self.kind.arguments or ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_options(parser, self.arguments)

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Runs the job and prints its summary, as JSON if asked. Raises ``CommandError``."""
        given = self.given(options)
        with as_command():
            checked = self.kind.check(given)
            if YES in self.arguments and not checked[DRY_RUN]:
                confirm_deletion(command, lambda: self._foresee(command, checked), is_sure=options["yes"])
            summary = self.perform(command, checked, options)
        figures = {name: value for name, value in summary.items() if name != "words"}  # the sentence is for people only
        lines = [json.dumps(figures, ensure_ascii=False)] if options["json"] else self.kind.lines(summary)
        for line in lines:
            command.stdout.write(line)
        with as_command():
            self.kind.judge(checked, summary)

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of the job from the command's options. Raises ``CommandError``."""
        for one in self.arguments:
            if one.instead_of and bool(options[one.instead_of]) == options[one.name]:
                raise CommandError(f"Name {one.instead_of}, or give --{one.name}.", returncode=2)
        names = [one.name for one in self.arguments if one.stored and one.typed is not None]
        return {name: None if options[name] == [] else options[name] for name in names}

    def perform(
        self, command: BaseCommand, checked: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Runs the job in this process and returns its summary."""
        stream: Any = command.stderr  # Django's wrapper of a file; it has all that is used
        return run_job(self.kind.name, checked, stream=stream, resume=options.get("resume", False))

    def _foresee(self, command: BaseCommand, checked: Mapping[str, Any]) -> Iterable[str]:
        """Does the dry run. Returns lines that say what would be deleted."""
        foreseen = self.perform(command, {**checked, DRY_RUN: True}, {})
        if "words" not in foreseen:
            return self.kind.lines(foreseen)
        about = foreseen["folder"] if "folder" in foreseen else foreseen["room_id"]
        return [f"{safe_text(about, None)}: {foreseen['words']}"]


class JobCommand(SiteCommand):
    """A command that runs the job of its ``subject``."""

    subject: ClassVar[JobSubject]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declares the options of the subject."""
        self.subject.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self.subject.run(self, options)
