"""Serves ``/health``, ``/health/live`` and ``/health/ready``, for load balancers, service managers and browsers.

``/health/live`` checks nothing. The others answer within ``REPLSITE_HEALTH_SECONDS``, whatever the database does. Every
client may ask, and learns which part is not well and where to read more. Names of hosts, processes and clients, and the
database's own messages, are shown only to logged-in staff and by ``manage.py health``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from django.conf import settings
from django.db import Error
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from replsite import health
from replsite.conf import site_settings
from replsite.health import DISK_IS_FULL, NOT_STARTED, Part, Report, not_answering
from replsite.http.deadline import Deadline, NoAnswer

#: The public sentence for a part that is not well.
_WORDS = {
    "database": "It cannot be used, or does not answer. Start the server, or correct DATABASES (or DATABASE_URL).",
    "migrations": "Some are not applied. Run: manage.py migrate.",
    "positions": "They cannot be read. See manage.py check_streams.",
    "notifications": "Their queue is filling; when it is full, nothing is announced. End the session that keeps it.",
    "broadcaster": "Clients of this process get no facts. Start it again.",
    "disk": "It is nearly full. Remove old archives and imports, or make it larger.",
}
#: The public sentence for a part that has this word, instead of the one in ``_WORDS``.
_WORDS_OF_WORD = {
    ("database", DISK_IS_FULL): "The disk of the embedded server is full. Free space there; it starts again by itself.",
    ("database", NOT_STARTED): "The embedded server could not start, or does not answer. Its log says why: "
    "postgres/postgres.log in the data folder.",
}
_MORE = " `manage.py health` shows more."
_GROUPS = {"Stream": "streams", "Writer": "writers", "Job": "jobs", "Table": "tables", "Holds": "holds"}


def without_details(report: Report) -> Report:
    """Returns the report without private details.

    The result does not name streams, writers, readers and jobs. It has only their number for each status word.
    """
    parts = []
    found: dict[str, list[Part]] = {}
    for part in report.parts:
        if part.name in _WORDS:
            sentence = _WORDS_OF_WORD.get((part.name, part.word)) or _WORDS[part.name]
            parts.append(Part(part.name, part.well, "Well." if part.well else sentence + _MORE))
        else:
            found.setdefault(_GROUPS.get(part.name.partition(" ")[0], "readers"), []).append(part)
    for group, of_group in sorted(found.items()):
        words = Counter(part.word for part in of_group)
        text = ", ".join(f"{number} {word}" for word, number in sorted(words.items()))
        parts.append(Part(group, all(part.well for part in of_group), f"{text}.{_MORE}"))
    bad = [part for part in parts if not part.well]
    return Report(report.well, f"{bad[0].name}: {bad[0].sentence}" if bad else "Well.", tuple(parts))


class _Probe:
    """A health check that runs once for all requests that arrive while it runs."""

    def __init__(self, report: Callable[[], Report], name: str) -> None:
        self._deadline = Deadline(report, site_settings().health_seconds, name)

    def answer(self, request: HttpRequest) -> JsonResponse:
        try:
            report = self._deadline.ask()
        except NoAnswer as error:
            # The database does not answer, so the session cannot be read either. Every client gets the public report.
            return _answer(without_details(not_answering(error.seconds)))
        return _answer(report if _is_staff(request, report) else without_details(report))


def _is_staff(request: HttpRequest, report: Report) -> bool:
    """Returns true if the client is logged in as staff. Sends no query for a client without a session cookie.

    While the sessions cannot be read, no client counts as logged in.
    """
    # Sessions are in the database. Without it no client is known.
    can_be_asked = all(part.well for part in report.parts if part.name in ("database", "migrations"))
    if not can_be_asked or settings.SESSION_COOKIE_NAME not in request.COOKIES:
        return False
    try:
        return bool(request.user.is_staff)
    except Error:
        return False


def _answer(report: Report) -> JsonResponse:
    response = JsonResponse(report.as_json(), status=200 if report.well else 503)
    response["Cache-Control"] = "no-store"
    return response


_READY = _Probe(health.ready, "replsite-ready")
_SUMMARY = _Probe(health.summary, "replsite-health")


@require_safe
def live_view(request: HttpRequest) -> JsonResponse:
    return _answer(Report(True, "This process is up."))


@require_safe
def ready_view(request: HttpRequest) -> JsonResponse:
    """Serves ``/health/ready``: 503 while this process cannot serve."""
    return _READY.answer(request)


@require_safe
def health_view(request: HttpRequest) -> JsonResponse:
    """Serves ``/health``: 503 while a part of the site does not work, or a writer, reader or job has the status WRONG."""
    return _SUMMARY.answer(request)
