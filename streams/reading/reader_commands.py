"""Knows the commands that run those named readers that have no handlers, such as the queries of the live pipeline.

``manage.py runhandlers`` runs all other named readers.
"""

from __future__ import annotations

_commands: dict[str, str] = {}


def run_by(reader: str, command: str) -> None:
    """Declares the command that runs a reader. Status words name it when the reader has to be started."""
    _commands[reader] = command


def command_of(reader: str) -> str:
    return _commands.get(reader, "")
