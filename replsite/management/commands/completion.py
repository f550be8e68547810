"""Prints a script with which bash or zsh completes our commands and their options: ``manage.py completion SHELL``.

The script is generated from the commands' argument parsers. The shell runs no program to complete a word, so completion
is fast.
"""

from __future__ import annotations

from typing import Any, ClassVar

import shtab
from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandParser

from streams.runtime.command_line import SiteCommand

__all__ = ["ROOMS", "Command", "own_commands", "whole_parser"]

#: Apps whose commands are ours.
ROOMS = ("replsite", "pipeline", "events", "state", "streams")
_FILES = {
    "sources",
    "keys",
    "folder",
    "archive",
    "secret_file",
    "tls_certificate",
    "tls_key",
    "tls_ca",
    "tls_client_ca",
}
_FOLDERS = {"folder", "archive"}


class Command(SiteCommand):
    """The command ``completion``. It writes the script to standard output."""

    help = "Print a script that completes manage.py, its commands and their options in a shell."

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("completion bash > ~/.local/share/bash-completion/completions/manage.py", "for every new bash"),
        ("completion zsh > ~/.zfunc/_manage.py", "for every new zsh, with ~/.zfunc in fpath"),
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declares the argument ``shell``."""
        parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that is to read it")

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints the script."""
        self.stdout.write(shtab.complete(whole_parser(), shell=options["shell"]))


def own_commands() -> dict[str, SiteCommand]:
    """Returns the commands of our apps by name, in the order of the names."""
    found = {name: load_command_class(app, name) for name, app in sorted(get_commands().items()) if app in ROOMS}
    return {name: command for name, command in found.items() if isinstance(command, SiteCommand)}


def whole_parser() -> CommandParser:
    """Returns one parser with a subparser for each of our commands.

    The subparsers have the commands' own arguments, without those that Django adds to every command.
    """
    whole = CommandParser(prog="manage.py")
    choices = whole.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in own_commands().items():
        parser = choices.add_parser(name, help=command.help, description=command.help)
        command.add_arguments(parser)
        _complete_files(parser)
    return whole


def _complete_files(parser: CommandParser) -> None:
    for action in parser._actions:
        if action.dest in _FILES:
            action.complete = shtab.DIRECTORY if action.dest in _FOLDERS else shtab.FILE  # type: ignore[attr-defined]
