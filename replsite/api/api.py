"""Assembles the API: its operations, its authentication and limits, and the response to every error.

Only the URLs of a server import this module. This module loads django-ninja and pydantic, which commands do not need.
"""

from __future__ import annotations

import threading
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, Throttled, ValidationError
from ninja.openapi.schema import OpenAPISchema
from ninja.renderers import JSONRenderer

from replsite import installed_apps
from replsite.api import streams
from replsite.api.access import Forbidden, RatePerToken, TokenAuth
from replsite.api.streams import Conflict
from replsite.http.database_down import away_response
from streams.core.own_stack import on_own_stack
from streams.db import driver
from streams.errors import StreamError, TokenError
from streams.runtime.text import safe_text


class _Api(NinjaAPI):
    """An API whose OpenAPI description is computed once.

    Any client may request the description, and to compute it takes a quarter of a second. When the description was
    computed for each request, 300 clients made all others wait for eight seconds.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._making = threading.Lock()
        self._made: tuple[str, OpenAPISchema] | None = None

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        """Returns the OpenAPI description with addresses that begin with ``path_prefix``. The caller must not change it."""
        prefix = self.get_root_path(path_params or {}) if path_prefix is None else path_prefix
        with self._making:
            if self._made is None or self._made[0] != prefix:
                self._made = prefix, super().get_openapi_schema(path_prefix=prefix)
            return self._made[1]


class _Renderer(JSONRenderer):
    """Writes JSON of any depth that events have, however deep the stack of the request is."""

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> Any:
        return on_own_stack(super().render, request, data, response_status=response_status)


api = _Api(
    title="replsite",
    version="1",
    description=(
        "What the commands do, over HTTP. Each request needs a token of an operator in `Authorization: Bearer …`, and "
        "acts with that user's permissions. Changes are in the admin's log. A request that is refused gets `errcode` "
        "and `error`."
    ),
    urls_namespace="api",
    docs_url=None,
    auth=TokenAuth(),
    throttle=RatePerToken(),
    renderer=_Renderer(),
)
api.add_router("", streams.router)


def refuse(request: HttpRequest, status: int, errcode: str, error: str, permission: str | None = None) -> HttpResponse:
    """Returns the JSON response that refuses a request, with ``errcode``, the text ``error`` and the missing permission."""
    body = {"errcode": errcode, "error": safe_text(error, None), **({"permission": permission} if permission else {})}
    response = api.create_response(request, body, status=status)
    response["Cache-Control"] = "no-store"
    return response


def _on(error: type[Exception], status: int, errcode: str) -> None:
    def handler(request: HttpRequest, found: Any) -> HttpResponse:
        return refuse(request, status, errcode, str(found))

    api.add_exception_handler(error, handler)


@api.exception_handler(AuthenticationError)
def _unknown_token(request: HttpRequest, error: Any) -> HttpResponse:
    is_given = "Authorization" in request.headers
    errcode, which = ("M_UNKNOWN_TOKEN", "Unknown or expired") if is_given else ("M_MISSING_TOKEN", "Missing")
    response = refuse(request, 401, errcode, f"{which} token. Send one in the header Authorization: Bearer TOKEN.")
    response["WWW-Authenticate"] = "Bearer"
    return response


@api.exception_handler(Throttled)
def _too_many(request: HttpRequest, error: Any) -> HttpResponse:
    response = refuse(request, 429, "M_LIMIT_EXCEEDED", "This token has made too many requests. Wait a little.")
    response["Retry-After"] = str(max(1, round(error.wait or 1)))
    return response


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: Any) -> HttpResponse:
    first = error.errors[0] if error.errors else {}
    where = ".".join(str(part) for part in first.get("loc", ()) if part not in ("query", "path", "body", "asked"))
    return refuse(request, 400, "M_INVALID_PARAM", f"{where or 'The request'}: {first.get('msg', 'is not valid')}.")


@api.exception_handler(Forbidden)
def _forbidden(request: HttpRequest, error: Any) -> HttpResponse:
    return refuse(request, 403, "M_FORBIDDEN", str(error), error.permission)


@api.exception_handler(HttpError)
def _unreadable(request: HttpRequest, error: Any) -> HttpResponse:
    return refuse(request, error.status_code, "M_NOT_JSON" if error.status_code == 400 else "M_UNKNOWN", str(error))


@api.exception_handler(RequestDataTooBig)
def _too_large(request: HttpRequest, error: Any) -> HttpResponse:
    return refuse(request, 413, "M_TOO_LARGE", "The request's JSON is too large.")


def _away(request: HttpRequest, error: Any) -> HttpResponse:
    away = away_response(request, error)  # logs it
    response = refuse(request, 503, "M_UNKNOWN", "The database cannot be read.")
    response["Retry-After"] = away["Retry-After"]
    return response


for _error in driver.database_lost:  # actions use connections of the driver, without Django
    api.add_exception_handler(_error, _away)
_on(Http404, 404, "M_NOT_FOUND")
_on(Conflict, 409, "M_UNKNOWN")
_on(StreamError, 409, "M_UNKNOWN")
_on(TokenError, 400, "M_INVALID_PARAM")

if installed_apps.has("events"):
    from events.errors import (
        BadToken,
        EventsError,
        InvalidQuery,
        NotReadable,
        TooManyWaiters,
        UnknownEvent,
        UnknownRoom,
    )
    from replsite.api import client_sync
    from replsite.api import rooms as room_operations

    _on(EventsError, 409, "M_UNKNOWN")
    _on(UnknownRoom, 404, "M_NOT_FOUND")
    _on(UnknownEvent, 404, "M_NOT_FOUND")
    _on(NotReadable, 403, "M_FORBIDDEN")
    _on(BadToken, 400, "M_INVALID_PARAM")
    _on(InvalidQuery, 400, "M_INVALID_PARAM")
    _on(TooManyWaiters, 503, "M_LIMIT_EXCEEDED")
    api.add_router("", client_sync.router)
    if installed_apps.has("pipeline"):
        from pipeline.errors import PipelineError
        from replsite.api import jobs
        from streams.jobs.errors import JobError, QueueFull, UnknownJob, UnknownKind, UnusableArguments

        _on(JobError, 409, "M_UNKNOWN")
        _on(PipelineError, 409, "M_UNKNOWN")
        _on(UnusableArguments, 400, "M_INVALID_PARAM")
        _on(UnknownKind, 400, "M_INVALID_PARAM")
        _on(UnknownJob, 404, "M_NOT_FOUND")
        _on(QueueFull, 503, "M_LIMIT_EXCEEDED")
        api.add_router("", jobs.router)
    # After the jobs: `/rooms/{room_id}` would take `/rooms/{room_id}/jobs` for a room.
    api.add_router("", room_operations.router)
