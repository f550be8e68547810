"""Serves streams, writers and readers from the shared snapshot, and carries out the actions of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from django.db.models import Q
from django.http import Http404
from ninja import Query, Router

from replsite.api import schemas
from replsite.api.access import needs
from replsite.api.schemas import answers
from replsite.live_rows.readers import ReaderRow
from replsite.live_rows.shared import SHARED
from replsite.live_rows.streams import StreamRow, WriterRow
from replsite.operator_actions import ACTIONS, Asked, Plan, perform
from streams.follow import parked_facts
from streams.follow.handlers import effects_database_of, load_handlers
from streams.models import ParkedFact, StoredCursor
from streams.runtime.text import safe_text

router = Router(tags=["Streams"])
StreamName = Annotated[str | None, Query(None, description="only those of this stream", max_length=200)]
DeadLetterToken = Annotated[int | None, Query(None, description="only this one", ge=0, le=2**63 - 1)]
ReplaySince = Annotated[str, Query("", description="a time in UTC, a date, or an age such as 12h", max_length=40)]
ReplayToken = Annotated[int | None, Query(None, description="after this fact of the stream", ge=0, le=2**63 - 1)]
DeadLetterLimit = Annotated[int, Query(50, ge=1, le=500)]
DeadLetterFrom = Annotated[str | None, Query(None, alias="from", pattern=r"^[A-Za-z0-9_.-]{1,200} [0-9]{1,19}$")]


class Conflict(Exception):
    """The error of an action that cannot be carried out now."""


@router.get("/token", response=answers(schemas.TokenDetails), summary="Show this token", tags=["Token"])
def show_token(request: Any) -> dict[str, Any]:
    """Returns the name, user, permissions and expiry time of the token of this request."""
    token = request.auth
    return {
        "name": token.name,
        "user": token.user.get_username(),
        "read_only": token.read_only,
        "expires_at": token.expires_at,
        "permissions": sorted(token.user.get_all_permissions()),
    }


@router.get("/health", response=answers(schemas.Health), summary="Show the site's health")
def show_health(request: Any) -> dict[str, Any]:
    """Returns the worst status with its reason, and every other problem, as the head of the live page does."""
    found = SHARED.get()
    return {
        "as_of": found.as_of,
        "version": found.version,
        "health": found.health.word,
        "sentence": found.health.sentence,
        "problems": [f"{p.words}: {p.verdict.sentence}" for p in found.health.problems],
    }


@router.get("/streams", response=answers(list[schemas.Stream]), summary="List streams")
def list_streams(request: Any) -> Sequence[StreamRow]:
    """Returns all streams with the positions of their writers."""
    return SHARED.get().streams


@router.get("/writers", response=answers(list[schemas.Writer]), summary="List writers")
def list_writers(
    request: Any, name: Annotated[str | None, Query(None, description="only the writer of this name")] = None
) -> list[WriterRow]:
    """Returns the writers of all streams, with their open appends."""
    found = [writer for stream in SHARED.get().streams for writer in stream.writers]
    return [writer for writer in found if name in (None, writer.writer)]


@router.get("/readers", response=answers(list[schemas.Reader]), summary="List readers")
def list_readers(
    request: Any,
    name: Annotated[str | None, Query(None, description="only readers of this name")] = None,
    limit: Annotated[int, Query(500, ge=1, le=5_000)] = 500,
) -> list[ReaderRow]:
    """Returns readers and connections with their lag, the worst first."""
    found = [reader for reader in SHARED.get().readers if name in (None, reader.name)]
    found.sort(key=lambda reader: (-reader.status.severity, -reader.lag_seconds, reader.name))
    return found[:limit]


@router.post("/streams/{path:name}/abort", response=answers(schemas.ActionDone), summary="End what holds a stream back")
@needs(ACTIONS["end-holder"].permission)
def abort_holders(request: Any, name: str) -> dict[str, str]:
    """Ends the open transactions that hold the stream back, as `manage.py streams abort` does."""
    return _act(request, "end-holder", name)


@router.post("/readers/{path:key}/disconnect", response=answers(schemas.ActionDone), summary="Disconnect a reader")
@needs(ACTIONS["disconnect-reader"].permission)
def disconnect_reader(request: Any, key: str) -> dict[str, str]:
    """Ends a connection to a replication server. `key` is the field `key` of the connection in the list of readers."""
    return _act(request, "disconnect-reader", key)


@router.post("/readers/{path:name}/forget", response=answers(schemas.ActionDone), summary="Forget a reader")
@needs(ACTIONS["forget-reader"].permission)
def forget_reader(request: Any, name: str) -> dict[str, str]:
    """Removes the cursors of a named reader that will not run again, as `manage.py streams forget` does."""
    return _act(request, "forget-reader", name)


@router.post("/readers/{path:name}/resync", response=answers(schemas.ActionDone), summary="Resync a reader")
@needs(ACTIONS["resync-reader"].permission)
def resync_reader(request: Any, name: str) -> dict[str, str]:
    """Sets the cursors of a named reader to the present positions, as `manage.py resync reader` does.

    The reader never handles the facts in between.
    """
    return _act(request, "resync-reader", name)


@router.get("/readers/{path:name}/replay", response=answers(schemas.Replay), summary="Preview a replay of a reader")
@needs(ACTIONS["replay-reader"].permission)
def preview_replay(
    request: Any, name: str, since: ReplaySince = "", stream: StreamName = None, token: ReplayToken = None
) -> dict[str, Any]:
    """Returns what a replay would do, in sentences, and changes nothing. `since` or `token` is required."""
    plan, _ = _plan("replay-reader", _asked(request, name, stream, token, since))
    return {"sentences": list(plan.sentences)}


@router.post("/readers/{path:name}/replay", response=answers(schemas.ActionDone), summary="Replay a reader")
@needs(ACTIONS["replay-reader"].permission)
def replay_reader(
    request: Any, name: str, since: ReplaySince = "", stream: StreamName = None, token: ReplayToken = None
) -> dict[str, str]:
    """Sets the cursors of a named reader that is stopped back, so that it handles facts again, as `manage.py resync reader` does.

    `since` is a time: all facts that were inserted since, by the clock of the database, are handled again. `token` is the last
    fact of the stream that is not handled again. Preview it first.
    """
    return _act(request, "replay-reader", name, stream, token, since)


@router.get("/readers/{path:name}/parked", response=answers(schemas.DeadLetterList), summary="List dead letters")
@needs("streams.view_parkedfact")
def list_dead_letters(
    request: Any, name: str, stream: StreamName = None, limit: DeadLetterLimit = 50, start: DeadLetterFrom = None
) -> dict[str, Any]:
    """Returns the facts that a reader's handlers could not take, sorted by stream and token, as `manage.py parked` does.

    `from` is `next_batch` of the previous answer.
    """
    _check_name(name, stream or "")
    load_handlers()  # the handlers declare the database of a reader's dead letters
    found = parked_facts(name, stream)
    if start is not None:
        after, _, token = start.rpartition(" ")
        found = found.filter(Q(stream=after, token__gt=min(int(token), 2**63 - 1)) | Q(stream__gt=after))
    page = list(found[: limit + 1])
    if not page and not StoredCursor.objects.using(effects_database_of(name)).filter(reader=name).exists():
        raise Http404("There is no such reader.")
    last = page[limit - 1] if len(page) > limit else None
    return {
        "parked": [_dead_letter(fact) for fact in page[:limit]],
        "next_batch": f"{last.stream} {last.token}" if last is not None else None,
    }


@router.post("/readers/{path:name}/parked/retry", response=answers(schemas.ActionDone), summary="Retry dead letters")
@needs(ACTIONS["retry-parked"].permission)
def retry_dead_letters(
    request: Any, name: str, stream: StreamName = None, token: DeadLetterToken = None
) -> dict[str, str]:
    """Asks the reader's own process to retry dead letters: all of them, those of one stream, or a single one.

    The process begins within seconds, or when it starts.
    """
    return _act(request, "retry-parked", name, stream, token)


@router.post("/readers/{path:name}/parked/drop", response=answers(schemas.ActionDone), summary="Drop dead letters")
@needs(ACTIONS["drop-parked"].permission)
def drop_dead_letters(
    request: Any, name: str, stream: StreamName = None, token: DeadLetterToken = None
) -> dict[str, str]:
    """Deletes dead letters of a reader: all of them, those of one stream, or a single one, as `manage.py parked drop` does."""
    return _act(request, "drop-parked", name, stream, token)


@router.post(
    "/streams/{path:name}/end-blocker",
    response=answers(schemas.ActionDone),
    summary="End the session whose lock an append waits for",
)
@needs(ACTIONS["end-blocker"].permission)
def end_blocker(request: Any, name: str) -> dict[str, str]:
    """Ends the sessions for whose locks open appends to the stream wait."""
    return _act(request, "end-blocker", name)


def _act(
    request: Any, name: str, about: str, stream: str | None = None, token: int | None = None, since: str = ""
) -> dict[str, str]:
    plan, carry_out = _plan(name, _asked(request, about, stream, token, since))
    text, is_done = perform(request.auth.user_id, plan, carry_out, f" (API token {request.auth})")
    if not is_done:
        raise Conflict(text)
    return {"result": text}


def _asked(request: Any, about: str, stream: str | None, token: int | None, since: str) -> Asked:
    _check_name(about, stream or "", since)
    return Asked(about, request.auth.user.get_username(), stream, token, since=since)


def _plan(name: str, asked: Asked) -> tuple[Plan, Callable[[], str]]:
    plan = ACTIONS[name].plan(asked)
    if plan.carry_out is None:
        raise Conflict(" ".join(plan.sentences))
    return plan, plan.carry_out


def _check_name(*names: str) -> None:
    if any("\x00" in name for name in names):
        raise Conflict("No reader, writer or stream has a NUL in its name.")


def _dead_letter(found: ParkedFact) -> dict[str, Any]:
    return {
        "stream": found.stream,
        "token": found.token,
        "writer": safe_text(found.instance_name, None),
        "attempts": found.attempts,
        "parked_at": found.parked_at,
        "tried_at": found.tried_at,
        "error": safe_text(found.error, None),
        "traceback": safe_text(found.traceback, None, keep="\n\t"),
    }
