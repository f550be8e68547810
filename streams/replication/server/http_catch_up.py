"""``GET /_synapse/replication/get_repl_stream_updates/<stream>/<txn_id>?from_token=N&upto_token=M``: catch-up over HTTP.

Requests, statuses and bodies are those of Synapse 1.43, so a real worker can ask; later versions add ``instance_name``,
which picks the facts of one writer. With ``REPLSITE_REPLICATION_SECRET`` set a request needs it as a bearer token;
without, only this machine and the networks of ``REPLSITE_PLAIN_NETWORKS`` may ask, and nobody through a proxy.
For half an hour an equal transaction ID gets the answer that was given before, to the same question only: 1.43 looks at
the ID alone and can answer with another stream's facts.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from secrets import compare_digest

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from streams.conf import stream_settings
from streams.db import driver
from streams.errors import ResyncNeeded, UnknownStream
from streams.replication.protocol.access import Access
from streams.replication.server.stream_updates import Question, stream_updates
from streams.runtime.logs import Condition, get_logger

__all__ = ["AnswerCache", "Refused", "stream_updates_view"]

log = get_logger(__name__)
_database_away = Condition(log, "catch_up.database_away", "catch_up.database_back")

CACHE_SECONDS = 30 * 60
CACHE_LIMIT_BYTES = 16 * 1024 * 1024
#: So many questions are worked on at a time; more wait, and are sent away after the time below.
MOST_AT_ONCE = 8
WAIT_SECONDS = 10.0
#: Longest transaction ID that is remembered.
TXN_ID_LIMIT = 200

_places = threading.BoundedSemaphore(MOST_AT_ONCE)


class Refused(Exception):
    """The answer is an error: HTTP status, Matrix error code, and what to tell."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class AnswerCache:
    """Answers by (transaction ID, question), for a time, up to a number of bytes; the oldest go first. For many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, limit_bytes: int = CACHE_LIMIT_BYTES) -> None:
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._answers: OrderedDict[tuple[str, Question], tuple[float, bytes]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, txn_id: str, question: Question) -> bytes | None:
        """The answer given before, if it is still kept."""
        with self._lock:
            self._forget()
            found = self._answers.get((txn_id, question))
            return None if found is None else found[1]

    def keep(self, txn_id: str, question: Question, answer: bytes) -> None:
        """Remember an answer."""
        with self._lock:
            if (txn_id, question) not in self._answers:
                self._answers[txn_id, question] = (self._clock(), answer)
                self._bytes += _weight(txn_id, answer)
            self._forget()

    def _forget(self) -> None:
        oldest = self._clock() - CACHE_SECONDS
        while self._answers:
            key, (at, answer) = next(iter(self._answers.items()))
            if at > oldest and self._bytes <= self._limit_bytes:
                return
            del self._answers[key]
            self._bytes -= _weight(key[0], answer)


def _weight(txn_id: str, answer: bytes) -> int:
    return len(txn_id) + len(answer) + 500  # what an entry takes besides


_cache = AnswerCache()


@csrf_exempt  # there are no cookies here; whoever does not say GET gets an error that is JSON, too
def stream_updates_view(request: HttpRequest, stream: str = "", txn_id: str = "") -> HttpResponse:
    """The view; every outcome is JSON."""
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


def _answer(txn_id: str, question: Question) -> bytes:
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


def _question(request: HttpRequest, stream: str, txn_id: str) -> Question:
    if request.method != "GET":
        raise Refused(405, "M_UNRECOGNIZED", "Unrecognized request: missed facts are asked for with GET.")
    if not txn_id or len(txn_id) > TXN_ID_LIMIT:
        raise Refused(400, "M_UNRECOGNIZED", "Unrecognized request: the path ends with /<stream>/<transaction id>.")
    return Question(
        stream=stream,
        after=max(_integer(request, "from_token"), 0),  # no fact is below; the width stays a bigint
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
    if name is not None and "\0" in name:
        raise Refused(400, "M_INVALID_PARAM", "Query parameter 'instance_name' must not hold NUL")
    return name


# --- who may ask --------------------------------------------------------------------------------------------------


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
