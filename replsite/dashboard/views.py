"""Serves the live page over HTTP, to staff only.

The page is served as HTML. It then asks each second for its parts as JSON, with the tag of those that it shows.
"""

from __future__ import annotations

import gzip
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import Error as DjangoError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe

from replsite.dashboard.action_links import action_addresses
from replsite.dashboard.fragments import SEE_ROOMS, render, rights_of, tables_of_site
from replsite.dashboard.page import TABLES, live_page_data
from replsite.dashboard.shared_answers import SharedAnswers
from replsite.http.database_down import away_response
from replsite.live_rows.cells import NOTHING, Cell, Group, Row
from replsite.live_rows.shared import SHARED
from replsite.live_rows.snapshot import Snapshot
from streams.runtime.csv_text import csv_text

_ANSWERS = SharedAnswers()


@require_safe
def _live_page(request: HttpRequest) -> HttpResponse:
    snapshot = SHARED.get()
    page = live_page_data(snapshot)
    rights = rights_of(request.user)
    shown = render(page, rights, snapshot.as_of)
    read_at = _read_at(snapshot)
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Streams",
        "as_of": snapshot.as_of,
        "word": page["health"]["word"],
        "shown": shown,
        "tables": [
            (name, TABLES[name], groups, read_at.get(name, snapshot.as_of))
            for name, groups in shown.tables.items()
            if name != "rooms" or SEE_ROOMS in rights
        ],
        "addresses": _addresses(rights),
    }
    return TemplateResponse(request, "dashboard/live.html", context)


def _read_at(snapshot: Snapshot) -> dict[str, datetime]:
    # These figures may be older than the snapshot.
    storage = snapshot.storage
    return {} if storage is None else dict.fromkeys(("storage", "rooms"), storage.as_of)


def _addresses(rights: frozenset[str]) -> dict[str, str]:
    # ``~`` stands for the name or ID of the row.
    history = reverse("live-history")
    return action_addresses(rights) | {"history": f"{history}?stream=~", "who": f"{history}?who=~"}


live_page = admin.site.admin_view(_live_page)


@require_safe
def _live_csv(request: HttpRequest, table: str) -> HttpResponse:
    if table not in tables_of_site():
        raise Http404("The page has no such table.")
    if table == "rooms" and SEE_ROOMS not in rights_of(request.user):
        raise PermissionDenied(SEE_ROOMS)
    snapshot = SHARED.get()
    groups = live_page_data(snapshot, is_whole=True)[table]  # type: ignore[literal-required]
    columns = [column.title for column in TABLES[table].columns]
    rows = (
        [*_keys(group, row), *map(_value, row["cells"])] for group in groups for row in (group["head"], *group["rows"])
    )
    response = HttpResponse(csv_text(["group", "row", *columns], rows), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{table}-{snapshot.as_of:%Y%m%dT%H%M%SZ}.csv"'
    return response


live_csv = admin.site.admin_view(_live_csv)


def _keys(group: Group, row: Row) -> tuple[str, str]:
    return group["key"].strip(), row["key"]


def _value(cell: Cell) -> str:
    text = cell.get("at") or (cell["text"] if cell["text"] != NOTHING else "")
    return " · ".join(part for part in (text, cell.get("sub", ""), cell.get("since", "")) if part)


@require_safe
def live_data(request: HttpRequest) -> HttpResponse:
    """Returns the parts of the page as JSON, or 304 if the viewer has them. The header ``As-Of`` has their time.

    Viewers who are not staff, or not any more, get 403 instead of the login page. If the database cannot be read, the
    status is 503.
    """
    try:
        if not admin.site.has_permission(request):
            return JsonResponse({"error": "Log in as staff."}, status=403)
        answer = _ANSWERS.of(rights_of(request.user))
    except DjangoError as error:
        return away_response(request, error)
    is_packed = "gzip" in request.headers.get("Accept-Encoding", "")
    content = answer.packed if is_packed else gzip.decompress(answer.packed)
    whole = HttpResponse(content, content_type="application/json", headers={"ETag": answer.etag})
    if is_packed:
        whole["Content-Encoding"] = "gzip"
    response = get_conditional_response(request, etag=answer.etag, response=whole) or whole
    # Django leaves other headers of ``whole`` out of a 304. The browser keeps no copy: the page itself has the tag.
    response["As-Of"], response["Cache-Control"] = answer.as_of, "no-store"
    response["Vary"] = "Accept-Encoding"
    return response
