"""Serves the page of facts, to staff only: the newest facts of a stream, and each new fact as soon as it is complete.

A search (``fact_search``) shows the facts that fit instead. While a search for a content has not read all rows and the page has
place, the page asks for the next part by itself.

The page is loaded as HTML. New facts are sent as server-sent events; an event is a table row as HTML. A site that is served
without ASGI has no such events, so its page shows only the facts from the time of loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.views.decorators.http import require_safe

from replsite.dashboard.fact_search import NAMES, Reached, Unusable, search
from streams import durable, registry, stream_view
from streams.db.consistent_read import limited_waits
from streams.facts import Fact
from streams.runtime.text import safe_text
from streams.stream_object import Stream

FACTS_SHOWN = 50
#: The most characters of a value that are shown.
_VALUE_LENGTH = 80


@require_safe
def _facts_page(request: HttpRequest) -> HttpResponse:
    names = [stream.name for stream in registry.all_streams() if _may_see(stream, request)]
    stream = _asked(request, names)
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": f"Facts of {stream.name}",
        "stream": stream.name,
        "streams": names,
        "is_live": False,
        "most": FACTS_SHOWN,
        "asked": {name: request.GET.get(name, "") for name in NAMES},
        "key": stream.declaration.key,
    }
    try:
        found = search(stream, request.GET)
    except Unusable as error:
        context["refused"] = str(error)
        return TemplateResponse(request, "dashboard/facts.html", context)
    if found is not None:
        context |= {
            "found": found,
            "reached": _progress(found.reached),
            "rows": [_row(stream, fact) for fact in found.facts],
            "equal": [_row(stream, fact) for fact in found.equal],
        }
        return TemplateResponse(request, "dashboard/facts.html", context)
    context["is_live"] = isinstance(request, ASGIRequest)
    with limited_waits(stream.database):
        page = stream.read(newest=True, limit=FACTS_SHOWN)
    context["after"] = page.facts[0].token if page.facts else page.next
    context["rows"] = [_row(stream, fact) for fact in page.facts]
    return TemplateResponse(request, "dashboard/facts.html", context)


facts_page = admin.site.admin_view(_facts_page)


def _of_stream(make: Callable[[Stream], Any]) -> Any:
    """Returns a view that answers as the view which ``make`` returns for the stream that the query parameter ``stream`` names."""
    made = cache(make)

    async def answer(request: HttpRequest) -> HttpResponseBase:
        stream = registry.find(request.GET.get("stream", ""))
        if stream is None:
            if not await sync_to_async(admin.site.has_permission)(request):
                raise PermissionDenied  # as for streams that exist
            raise Http404("There is no stream of that name.")
        return await made(stream)(request)

    for alias in connections:
        transaction.non_atomic_requests(using=alias)(answer)
    return answer


#: Sends further facts to the page.
facts_events = _of_stream(
    lambda stream: stream_view(stream, allow=partial(_may_see, stream), render=partial(_row, stream))
)
#: All facts, for clients of the protocol Durable Streams.
facts_stream = _of_stream(lambda stream: durable(stream, allow=partial(_may_see, stream), render=_rendering(stream)))


def _asked(request: HttpRequest, names: list[str]) -> Stream:
    name = request.GET.get("stream", names[0] if names else "")
    if name not in names:
        raise Http404("There is no stream of that name that you may see.")
    return registry.get(name)


def _may_see(stream: Stream, request: HttpRequest) -> bool:
    user = request.user
    names = [f"{model._meta.app_label}.view_{model._meta.model_name}" for model in stream.models]
    return bool(names) and admin.site.has_permission(request) and all(user.has_perm(name) for name in names)


def _progress(reached: Reached | None) -> str:
    if reached is None:
        return ""
    at = f" of {reached.at:%Y-%m-%d %H:%M:%S} UTC" if reached.at else ""
    return f"Searched down to ID {reached.lowest:,}{at}. The stream has the IDs {reached.first:,} to {reached.last:,}."


def _row(stream: Stream, fact: Fact) -> str:
    number = abs(getattr(fact, fact.id_field))
    texts = ((name, str(value)[: _VALUE_LENGTH + 1]) for name, value in _values(stream, fact))
    values = ", ".join(f"{name} {safe_text(text, _VALUE_LENGTH)}" for name, text in texts)
    return format_html(
        '<tr><th scope="row" class="live-number">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>',
        number, f"{fact.received_at:%Y-%m-%d %H:%M:%S}", safe_text(fact.instance_name), values,
    )  # fmt: skip


def _rendering(stream: Stream) -> Callable[[Fact], Any] | None:
    return None if stream.has_named_rows else lambda fact: dict(_values(stream, fact))


def _values(stream: Stream, fact: Fact) -> Iterator[tuple[str, Any]]:
    attributes = {field.column: field.attname for field in fact._meta.concrete_fields}
    for table in stream.declaration.tables:
        if table.name == fact._meta.db_table:
            for column in table.columns:
                if (attribute := attributes.get(column.name)) is not None:
                    yield attribute, getattr(fact, attribute)
            return
