"""Parked facts: facts that a handler could not take are kept with their trace, retried when somebody says so, or dropped.

While a fact is parked its reader goes on with later ones. Retrying gives the handler a chunk of that one fact, its rows as they
were; its model instances may be gone by then.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models.functions import Now

from streams.conf import stream_settings
from streams.errors import UnknownReader
from streams.follow.chunks import Chunk, FollowedFact
from streams.follow.handlers import Handler, effects_database_of, handlers_of
from streams.replication.protocol.ordering import FollowedRow
from streams.runtime.error_text import error_text, without_secrets
from streams.runtime.logs import get_logger

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from streams.models import ParkedFact

__all__ = ["check_not_undone", "drop_parked", "park", "parked_facts", "retry_parked"]

log = get_logger(__name__)


def parked_facts(
    reader: str | None = None, stream: str | None = None, token: int | None = None
) -> QuerySet[ParkedFact]:
    """The parked facts of a reader, or of all readers whose cursors are in the streams' database."""
    from streams.models import ParkedFact  # noqa: PLC0415 - needs Django's apps to be loaded

    found = ParkedFact.objects.using(effects_database_of(reader)).all()
    wanted = {"reader": reader, "stream": stream, "token": token}
    return found.filter(**{name: value for name, value in wanted.items() if value is not None})


def park(handler: Handler, fact: FollowedFact, error: Exception, attempts: int) -> None:
    """Put a fact aside; in the transaction that moves the cursor beyond it."""
    parked_facts(handler.reader).using(handler.effects_database).update_or_create(
        reader=handler.reader,
        stream=handler.stream,
        token=fact.token,
        defaults={"instance_name": fact.writer, "rows": list(fact.rows), "attempts": attempts, **_trace(error)},
    )


def retry_parked(reader: str, stream: str | None = None, token: int | None = None) -> tuple[int, int]:
    """Give parked facts to the handler once more, in order; (taken, failed again). Raises ``UnknownReader``.

    A fact that is taken now leaves the table in the transaction of the handler's effect.
    """
    handlers = {handler.stream: handler for handler in handlers_of(reader)}
    taken = failed = 0
    for key, of_stream in list(parked_facts(reader, stream, token).values_list("pk", "stream")):
        handler = handlers.get(of_stream)
        if handler is None:
            raise UnknownReader(
                f"Reader {reader!r} has no handler for stream {of_stream!r}, of which facts are parked."
            )
        done = _retry(handler, key)
        taken, failed = taken + (done is True), failed + (done is False)
    return taken, failed


def _retry(handler: Handler, key: int) -> bool | None:
    """Whether it was taken; None when somebody else has it in hand, or had."""
    using, facts = handler.effects_database, parked_facts(handler.reader).using(handler.effects_database)
    try:
        with transaction.atomic(using=using):
            parked = facts.select_for_update(skip_locked=True).filter(pk=key).first()
            if parked is None:
                return None
            rows = [FollowedRow(parked.stream, parked.instance_name, parked.token, row) for row in parked.rows]
            with transaction.atomic(using=using):  # so that a failure of the handler leaves the row locked and ours
                handler.function(Chunk(parked.stream, rows, stream_settings().database))
                check_not_undone(using)
            parked.delete()
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is kept with the fact
        tried = facts.filter(pk=key)
        if (fact := tried.first()) is not None:
            tried.update(attempts=fact.attempts + 1, tried_at=Now(), **_trace(error))
        log.warning("reader.fact_failed_again", reader=handler.reader, stream=handler.stream, error=error_text(error))
        return False
    return True


def check_not_undone(using: str) -> None:
    """Raise ``TransactionManagementError`` when what a handler has just done is going to be rolled back without a word."""
    if transaction.get_rollback(using):
        raise transaction.TransactionManagementError(
            "The handler passed over an error of the database inside its transaction, which is to be rolled back. "
            "Put what may fail into a transaction.atomic block of its own."
        )


def drop_parked(reader: str, stream: str | None = None, token: int | None = None) -> int:
    """Give parked facts up; how many. Each leaves a line in the log."""
    dropped = 0
    for parked in parked_facts(reader, stream, token):
        count, _ = parked.delete()
        dropped += count
        log.warning("reader.fact_dropped", reader=reader, stream=parked.stream, token=parked.token, error=parked.error)
    return dropped


def _trace(error: Exception) -> dict[str, str]:
    text = "".join(traceback.format_exception(error))
    return {"error": error_text(error), "traceback": without_secrets(text.replace("\0", "\ufffd"))}
