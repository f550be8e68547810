"""Asks an operator in a terminal, and carries out an action of ``replsite.operator_actions``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DjangoError
from django.http import Http404

from replsite.operator_actions import ACTIONS, Asked
from streams.db import driver
from streams.errors import StreamError
from streams.runtime.command_line import read_line
from streams.runtime.text import safe_text

Ask = Callable[[str], str]


def act(
    say: Callable[[str], Any], action: str, asked: Asked, *, ask: Ask | None = None, is_confirmed: bool = False
) -> None:
    """Says what the action would do, and does it once the operator has typed the name of the reader or stream.

    Raises ``CommandError`` with status 2 if there is no such reader or no terminal to ask in, and with status 1 if the action
    was not confirmed, or not done, or only in part.
    """
    try:
        plan = ACTIONS[action].plan(asked)
        for sentence in plan.sentences:
            say(safe_text(sentence, None))
        if plan.carry_out is None:
            return
        if not is_confirmed:
            _confirm(
                ask or (read_line if sys.stdin is not None and sys.stdin.isatty() else None), plan.title, asked.name
            )
        say(plan.carry_out())
    except Http404 as error:
        raise CommandError(str(error), returncode=2) from error
    except StreamError as error:
        raise CommandError(str(error), returncode=1) from error
    except (driver.DatabaseError, DjangoError) as error:
        raise CommandError(driver.explain(error), returncode=1) from error


def _confirm(ask: Ask | None, question: str, name: str) -> None:
    if ask is None:
        raise CommandError(f"{question} There is no terminal to ask: add --yes.", returncode=2)
    if ask(f"{question} Type {name} to go on: ").strip() != name:
        raise CommandError("Not confirmed; nothing was done.", returncode=1)
