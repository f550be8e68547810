"""``GET /_synapse/replication/get_repl_stream_updates/<stream>/<txn_id>?from_token=N&upto_token=M``: HTTP catch-up.

Requests, statuses and bodies have the form of Synapse 1.43, so that a worker of Synapse can use this endpoint. Later
versions of Synapse add ``instance_name``, which selects the facts of one writer. If ``REPLSITE_REPLICATION_SECRET`` is
set, a request must have this secret as its bearer token. If the setting is empty, only requests from this machine and
from the networks of ``REPLSITE_PLAIN_NETWORKS`` are allowed, and only if they do not come through a proxy.

For half an hour, a request with the same transaction ID and the same arguments gets the same answer again. Synapse 1.43
compares only the ID, so it can answer with another stream's facts.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from secrets import compare_digest
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from streams import registry
from streams.conf import stream_settings
from streams.core.bounded import SharedCache
from streams.core.json_codec import encode_json
from streams.core.positions import linear_position
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.db import driver
from streams.errors import ResyncNeeded, UnknownStream
from streams.reading import watcher
from streams.reading.rows import StoredPosition, existing_rows, stored_positions
from streams.replication.common.batch_sizer import BatchSizer
from streams.replication.protocol.access import Access
from streams.replication.protocol.ordering import FollowedRow
from streams.runtime.logs import Condition, get_logger

log = get_logger(__name__)
_database_away = Condition(log, "catch_up.database_away", "catch_up.database_back")

CACHE_SECONDS = 30 * 60
CACHE_LIMIT_BYTES = 16 * 1024 * 1024
#: Most requests that are answered at a time. Further requests wait, and get 503 after ``WAIT_SECONDS``.
MOST_AT_ONCE = 8
WAIT_SECONDS = 10.0
#: Longest transaction ID and longest name of a writer, in characters. A request with a longer ID or name is refused.
TXN_ID_LIMIT, INSTANCE_LIMIT = 200, 200
#: Most bytes of memory that a stored answer takes besides its body. A character of the transaction ID or of the writer's
#: name takes up to four bytes.
_ENTRY_BYTES = 1_200 + 4 * (TXN_ID_LIMIT + INSTANCE_LIMIT)

_places = threading.BoundedSemaphore(MOST_AT_ONCE)


class Refused(Exception):
    """The error that refuses a request: HTTP status, Matrix error code, and text."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class AnswerCache:
    """A cache of answers by transaction ID and query, bounded in time and bytes. Several threads may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, limit_bytes: int = CACHE_LIMIT_BYTES) -> None:
        self._clock = clock
        self._answers: SharedCache[tuple[str, RangeQuery], tuple[float, bytes]] = SharedCache(
            limit_bytes, lambda kept: len(kept[1]) + _ENTRY_BYTES
        )

    def get(self, txn_id: str, question: RangeQuery) -> bytes | None:
        found = self._answers.get((txn_id, question))
        return None if found is None or found[0] <= self._clock() - CACHE_SECONDS else found[1]

    def keep(self, txn_id: str, question: RangeQuery, answer: bytes) -> None:
        if self.get(txn_id, question) is None:
            self._answers.put((txn_id, question), (self._clock(), answer))


_cache = AnswerCache()


@csrf_exempt  # there are no cookies here; a request that is not GET must get its error as JSON, too
def stream_updates_view(request: HttpRequest, stream: str = "", txn_id: str = "") -> HttpResponse:
    """Answers a request for missed facts. All answers are JSON, including errors."""
    try:
        _check_access(request)
        return HttpResponse(_answer(txn_id, _question(request, stream, txn_id)), content_type="application/json")
    except Refused as refused:
        response = HttpResponse(
            json.dumps({"errcode": refused.code, "error": str(refused)}, separators=(",", ":")),
            content_type="application/json",
            status=refused.status,
        )
        if refused.status == 401:
            response["WWW-Authenticate"] = "Bearer"
        return response


def _answer(txn_id: str, question: RangeQuery) -> bytes:
    if (known := _cache.get(txn_id, question)) is not None:
        return known
    if not _places.acquire(timeout=WAIT_SECONDS):
        raise Refused(503, "M_LIMIT_EXCEEDED", "Too many ask for missed facts at once. Ask again in a few seconds.")
    try:
        answer = stream_updates(question)
        _database_away.ends()
    except UnknownStream:
        raise Refused(400, "M_UNKNOWN", "Unknown stream") from None
    except ResyncNeeded as error:
        raise Refused(410, "REPLSITE_RESYNC_NEEDED", f"resync needed: {error}") from error
    except driver.DatabaseError as error:
        _database_away.begins(error)
        raise Refused(503, "M_UNKNOWN", "The database cannot be read now. Ask again in a few seconds.") from error
    finally:
        _places.release()
    _cache.keep(txn_id, question, answer)
    return answer


# --- the question -------------------------------------------------------------------------------------------------


def _question(request: HttpRequest, stream: str, txn_id: str) -> RangeQuery:
    if request.method != "GET":
        raise Refused(405, "M_UNRECOGNIZED", "Unrecognized request: missed facts are asked for with GET.")
    if not txn_id or len(txn_id) > TXN_ID_LIMIT:
        raise Refused(400, "M_UNRECOGNIZED", "Unrecognized request: the path ends with /<stream>/<transaction id>.")
    return RangeQuery(
        stream=stream,
        after=max(_integer(request, "from_token"), 0),  # no fact is below 0; upto - after fits into a bigint
        upto=_integer(request, "upto_token"),
        instance=_instance(request),
        with_instances=request.GET.get("with_instances") == "true",
    )


def _integer(request: HttpRequest, name: str) -> int:
    text = request.GET.get(name)
    if text is None:
        raise Refused(400, "M_MISSING_PARAM", f"Missing integer query parameter {name!r}")
    try:
        value = int(text)
    except ValueError:
        value = 2**63
    if not -(2**63) <= value < 2**63:
        raise Refused(400, "M_INVALID_PARAM", f"Query parameter {name!r} must be an integer of 64 bits")
    return value


def _instance(request: HttpRequest) -> str | None:
    name = request.GET.get("instance_name")
    # Answers are cached under this name, among others. Without the limit, names of 64 kB would make the cache a hundred
    # times larger than stated.
    if name is not None and ("\0" in name or len(name) > INSTANCE_LIMIT):
        text = f"Query parameter 'instance_name' must have at most {INSTANCE_LIMIT} characters, and no NUL"
        raise Refused(400, "M_INVALID_PARAM", text)
    return name


# --- access -------------------------------------------------------------------------------------------------------


def _check_access(request: HttpRequest) -> None:
    conf = stream_settings()
    if conf.replication_secret:
        _check_secret(request.headers.get("Authorization"), conf.replication_secret)
    elif "X-Forwarded-For" in request.headers or "Forwarded" in request.headers:
        raise Refused(
            403, "M_FORBIDDEN", "Set REPLSITE_REPLICATION_SECRET to answer requests that come through a proxy."
        )
    elif not Access(conf.plain_networks).is_near(request.META.get("REMOTE_ADDR", "")):
        raise Refused(
            403,
            "M_FORBIDDEN",
            "Without REPLSITE_REPLICATION_SECRET only this machine and REPLSITE_PLAIN_NETWORKS may ask.",
        )


def _check_secret(given: str | None, secret: str) -> None:
    if given is None:
        raise Refused(401, "M_MISSING_TOKEN", "Missing Authorization: Bearer <replication secret>")
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not compare_digest(token.strip().encode(), secret.encode()):
        raise Refused(403, "M_FORBIDDEN", "The replication secret is wrong")


# --- the answer -----------------------------------------------------------------------------------------------------

ROWS_PER_ANSWER = 5_000
#: An answer ends after the fact that makes it longer than this.
ANSWER_LIMIT_BYTES = 4 * 1024 * 1024
#: Longest time of a statement. A statement that takes longer is cancelled, and the answer is 503.
STATEMENT_LIMIT_MS = 20_000
#: Streams for which 1.43 returns its own position as ``upto_token``, instead of the requested one.
_ANSWERED_WITH_OWN_POSITION = frozenset({"presence_federation"})

#: Stream -> the number of the stream's rows to read at a time.
_paces: dict[str, BatchSizer] = {}


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """A query for the facts of ``stream`` with after < token <= upto, of the writer ``instance`` or of all if it is None.

    If ``with_instances`` is true, each update ends with its writer's name, after the row. Only our own followers ask
    for these names.
    """

    stream: str
    after: int
    upto: int
    instance: str | None = None
    with_instances: bool = False


def stream_updates(question: RangeQuery, using: str | None = None) -> bytes:
    """Returns the body of the answer: a JSON object with the rows of the range.

    The answer has only whole facts. It ends with the fact by which it becomes longer than ``ANSWER_LIMIT_BYTES``. This
    function blocks, and opens a database connection. Raises ``UnknownStream``, ``DatabaseError``, and ``ResyncNeeded``
    for a range that begins below the low-water mark.
    """
    declaration = registry.get(question.stream).declaration
    if question.after > question.upto and declaration.in_memory:
        question = replace(question, after=0)  # the client is at a former generation: all is new
    if question.after >= question.upto:
        return _body([], question.upto, is_limited=False)
    instance = None if declaration.announced_as else question.instance  # one name for all writers
    pace = _paces.setdefault(question.stream, BatchSizer())
    with closing(driver.direct_connection(using, application_name="replsite http catch-up")) as connection:
        driver.read_in_order(connection)
        with connection.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(f"SET LOCAL statement_timeout = {STATEMENT_LIMIT_MS}")
            # Positions are read in the same snapshot as the rows. Otherwise: a client asks for facts above the last
            # POSITION that it got. Fact 6 of writer B is pending, and fact 7 of writer C is committed. If the answer had
            # fact 7, the client would continue at 7 and miss fact 6.
            found = stored_positions(cursor, [question.stream])
            watcher.before_shown(found, using)
            stored = found.get(question.stream, {})
            writers, limit = [instance] if instance else None, pace.limit(ROWS_PER_ANSWER)
            rows, reached = existing_rows(cursor, declaration, writers, question.after, question.upto, limit)
            check_not_trimmed(cursor, question.stream, VectorToken(max(question.after, 0)), instance)
    pace.learn(rows)
    # A row above its writer's position is left out. Facts of the same writer below that row may still be pending, and
    # the client would miss them.
    complete = (row for row in rows if _is_complete(row, stored))
    updates, cut_at = _encoded(complete, declaration.announced_as, with_instances=question.with_instances)
    reached = min(reached, cut_at) if cut_at is not None else reached
    if reached < question.upto:
        return _body(updates, reached, is_limited=True)
    return _body(updates, _answered_position(question, stored), is_limited=False)


def _is_complete(row: FollowedRow, stored: Mapping[str, StoredPosition]) -> bool:
    position = stored.get(row.instance)
    return position is None or row.token <= position.position


def _answered_position(question: RangeQuery, stored: Mapping[str, StoredPosition]) -> int:
    if question.stream not in _ANSWERED_WITH_OWN_POSITION:
        return question.upto
    head = max((at.position for at in stored.values()), default=linear_position(()))
    return max(question.after, min(question.upto, head))


def _encoded(rows: Iterable[FollowedRow], announced_as: str, *, with_instances: bool) -> tuple[list[bytes], int | None]:
    """Returns (encoded updates, token of the last encoded fact). An update is a row with its token.

    The second value is None if all rows were encoded, because the size limit then did not end the answer early.
    """
    found: list[bytes] = []
    size = last = 0
    for token, fact in groupby(rows, lambda row: row.token):
        if size > ANSWER_LIMIT_BYTES:
            return found, last
        for row in fact:
            update: list[Any] = [token, row.row, *([announced_as or row.instance] if with_instances else [])]
            found.append(encode_json(update))
            size += len(found[-1])
        last = token
    return found, None


def _body(updates: list[bytes], upto: int, *, is_limited: bool) -> bytes:
    return b'{"updates":[%s],"upto_token":%d,"limited":%s}' % (
        b",".join(updates),
        upto,
        b"true" if is_limited else b"false",
    )
