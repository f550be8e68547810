"""Maps URLs to the API, and to the page about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.urls import URLPattern, path

from replsite.api.api import api, refuse
from replsite.api.page import api_page
from streams.runtime.any_text import of_any_text


def _in_words(view: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a view that does what ``view`` does, and refuses an unsupported HTTP method in JSON.

    ``view`` itself, which the library made, would refuse the method in plain text.
    """

    def explained(request: HttpRequest, answer: HttpResponseBase) -> HttpResponseBase:
        if answer.status_code != 405:
            return answer
        allowed = ", ".join(sorted(answer["Allow"].split(", ")))
        sentence = f"There is no {request.method} here. Use {allowed}; /api/ lists all operations."
        refused = refuse(request, 405, "M_UNRECOGNIZED", sentence)
        refused["Allow"] = allowed
        return refused

    if iscoroutinefunction(view):

        @wraps(view)
        async def waiting(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            return explained(request, await view(request, *args, **kwargs))

        return waiting

    @wraps(view)
    def plain(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return explained(request, view(request, *args, **kwargs))

    return plain


_made, _app, _namespace = api.urls
_operations = of_any_text(_operation for _operation in _made if isinstance(_operation, URLPattern))
for _operation in _operations:
    _operation.callback = _in_words(_operation.callback)
urlpatterns = [path("", api_page, name="api-page"), path("v1/", (_operations, _app, _namespace))]
