"""Implements the dialogue of ``manage.py streams forget``. ``streams.follow.forget`` does the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError as DjangoDatabaseError

from replsite.terminal.stream_actions import Confirmation
from streams.db import driver
from streams.errors import StreamError, UnknownReader
from streams.follow import forget_reader
from streams.follow.handlers import effects_database_of, load_handlers
from streams.models import StoredCursor
from streams.runtime.command_line import asked_by

__all__ = ["forget"]


def forget(say: Callable[[str], Any], reader: str, stream: str | None, *, is_confirmed: bool) -> None:
    """Removes the cursors of a reader, or only its cursor of one stream, once the operator confirms.

    Raises ``CommandError`` with status 2 for an unknown reader, and with status 1 if the cursors could not be removed.
    """
    load_handlers()  # the handlers declare the database of a reader's cursors
    try:
        if not is_confirmed:
            cursors = StoredCursor.objects.using(effects_database_of(reader)).filter(reader=reader)
            for cursor in cursors.order_by("stream"):
                if stream in (None, cursor.stream):
                    say(f"{reader} on {cursor.stream}: at {cursor.base}, {cursor.facts_handled} facts handled")
            Confirmation().ask(reader, "Forget it? A reader of this name that is started later does not go on there.")
        removed = forget_reader(reader, stream, asked_by())
        for gone in removed:
            say(f"{reader} on {gone.stream}: cursor at {gone.base} removed")
        if not removed:
            say(f"{reader}: no cursor was stored here; it is listed no more")
    except UnknownReader as error:
        raise CommandError(str(error), returncode=2) from error
    except StreamError as error:
        raise CommandError(str(error), returncode=1) from error
    except (driver.DatabaseError, DjangoDatabaseError) as error:
        raise CommandError(driver.explain(error), returncode=1) from error
