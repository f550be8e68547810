"""Dead letters: facts on which a handler failed, stored with the traceback until they are retried or dropped.

A fact that is stored as a dead letter is called *parked*. Its reader goes on with later facts. A retry calls the
handler with a chunk of only this fact. The chunk has the fact's rows as they were at the first attempt. The rows may be
gone from the stream's tables by then, and the chunk then has no model instances.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from django.db import connections
from django.db.models.functions import Now

from streams.core.json_codec import decode_json, encode_json
from streams.errors import UnknownReader
from streams.follow.chunks import Chunk, FollowedFact
from streams.follow.handler_transaction import call_undivided, commit_once
from streams.follow.handlers import Handler, OnFailure, effects_database_of, handlers_of
from streams.follow.part_cursors import lock_part
from streams.replication.protocol.ordering import FollowedRow
from streams.runtime.error_text import error_text, without_secrets
from streams.runtime.logs import get_logger
from streams.runtime.text import storable

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from streams.models import ParkedFact

log = get_logger(__name__)


def parked_facts(
    reader: str | None = None, stream: str | None = None, token: int | Sequence[int] | None = None
) -> QuerySet[ParkedFact]:
    """Returns the dead letters of a reader. If ``stream`` or ``token`` is given, returns only those with this stream or token.

    ``token`` may be several tokens.

    Without ``reader``, returns the dead letters of all readers whose cursors are in the streams' database.
    """
    from streams.models import ParkedFact  # noqa: PLC0415 - needs Django's apps to be loaded

    found = ParkedFact.objects.using(effects_database_of(reader)).all()
    name = "token" if token is None or isinstance(token, int) else "token__in"
    wanted = {"reader": reader, "stream": stream, name: token}
    return found.filter(**{name: value for name, value in wanted.items() if value is not None})


def park(
    handler: Handler,
    fact: FollowedFact,
    error: Exception,
    attempts: int,
    part_and_key: tuple[int | None, str] = (None, ""),
) -> None:
    """Stores a fact as a dead letter. Must be called in the transaction that moves the cursor past the fact.

    ``part_and_key`` are those of the fact's rows, if processes share the stream by key.
    """
    part, key = part_and_key
    parked_facts(handler.reader).using(handler.effects_database).update_or_create(
        reader=handler.reader,
        stream=handler.stream,
        token=fact.token,
        key=key,
        defaults={
            "instance_name": fact.writer,
            "part": part,
            "rows": _kept(fact.sent),
            "attempts": attempts,
            **_trace(error),
        },
    )


def _must_wait(parked: ParkedFact, handler: Handler) -> bool:
    """Takes the dead letter's part. Returns true if the dead letter has to wait for an earlier one of its key."""
    if not handler.by or parked.part is None:
        return False
    with connections[handler.effects_database].cursor() as cursor:
        lock_part(cursor, parked.reader, parked.stream, parked.part)
    of_key = parked_facts(parked.reader, parked.stream).using(handler.effects_database).filter(key=parked.key)
    return handler.on_failure is OnFailure.STOP and of_key.filter(part=parked.part, token__lt=parked.token).exists()


def retry_parked(reader: str, stream: str | None = None, token: int | None = None) -> tuple[int, int]:
    """Calls the handlers again with the reader's dead letters. Returns two numbers of dead letters: (handled, failed again).

    If ``stream`` or ``token`` is given, retries only the dead letters with this stream or token.

    A dead letter is deleted in the transaction in which its handler succeeds. Dead letters that another process retries
    at the same time are skipped and not counted. Raises ``UnknownReader`` if the reader has no handlers, or if it has a
    dead letter on a stream without a handler.
    """
    handlers = {handler.stream: handler for handler in handlers_of(reader)}
    handled = failed = 0
    for key, of_stream in list(parked_facts(reader, stream, token).values_list("pk", "stream")):
        handler = handlers.get(of_stream)
        if handler is None:
            raise UnknownReader(
                f"Reader {reader!r} has no handler for stream {of_stream!r}, of which facts are parked."
            )
        done = retry_one(handler, key)
        handled, failed = handled + (done is True), failed + (done is False)
    return handled, failed


def retry_one(handler: Handler, key: int) -> bool | None:
    """Calls the handler with the dead letter whose primary key is ``key``. Returns true if the handler succeeds.

    Returns false if the handler fails. Returns None if another process is retrying the dead letter, or has deleted it, or if
    an earlier dead letter has stopped its key.
    """
    facts, was_retried = parked_facts(handler.reader).using(handler.effects_database), False

    def work() -> None:
        nonlocal was_retried
        found = facts.filter(pk=key).first()
        if found is None or _must_wait(found, handler):
            return
        parked = facts.select_for_update(skip_locked=True).filter(pk=key).first()
        if parked is None:
            return
        rows = [FollowedRow(parked.stream, parked.instance_name, parked.token, row) for row in _sent(parked.rows)]
        call_undivided(handler, Chunk(parked.stream, rows, handler.streams_database))
        parked.delete()
        was_retried = True

    try:
        commit_once(handler, work)
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is kept with the fact
        tried = facts.filter(pk=key)
        if (fact := tried.first()) is not None:
            tried.update(attempts=fact.attempts + 1, tried_at=Now(), **_trace(error))
        log.warning("reader.fact_failed_again", reader=handler.reader, stream=handler.stream, error=error_text(error))
        return False
    return was_retried or None


def drop_parked(reader: str, stream: str | None = None, token: int | Sequence[int] | None = None) -> int:
    """Deletes a reader's dead letters, and logs a line for each. Returns the number of deleted dead letters."""
    dropped = 0
    for parked in parked_facts(reader, stream, token):
        count, _ = parked.delete()
        dropped += count
        log.warning("reader.fact_dropped", reader=reader, stream=parked.stream, token=parked.token, error=parked.error)
    return dropped


def _kept(rows: Sequence[Any]) -> list[Any] | str:
    """Returns rows as ``jsonb`` can store them. Rows with NUL or half a surrogate pair, which it refuses, are kept as a text."""
    text = encode_json(list(rows)).decode()
    try:
        msgspec.json.decode(text)  # as strict as jsonb, but for NUL
    except (msgspec.MsgspecError, RecursionError):
        return text
    return text if "\\u0000" in text else list(rows)


def _sent(kept: list[Any] | str) -> list[Any]:
    """Returns the rows as they travelled: the inverse of ``_kept``."""
    rows: list[Any] = decode_json(kept) if isinstance(kept, str) else kept
    return rows


def _trace(error: Exception) -> dict[str, str]:
    text = "".join(traceback.format_exception(error))
    return {"error": error_text(error), "traceback": without_secrets(storable(text))}
