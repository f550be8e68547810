"""Serves the list of who did what and when, to staff only, as a page and as CSV.

A user sees the rows of the sources (``replsite.history.happened``) whose tables the user may view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from replsite.history.happened import SOURCES, Happened, Wanted, read_page
from replsite.history.moments import moment_of
from streams.runtime.amounts import count
from streams.runtime.csv_text import csv_text

ROWS_SHOWN = 100
EXPORTED = 10_000
_LONGEST_NAME = 150


@require_safe
def _happened_page(request: HttpRequest) -> HttpResponse:
    may_see = tuple(kind for kind, source in SOURCES.items() if request.user.has_perm(source.permission))
    if not may_see:
        raise PermissionDenied
    wanted, chosen = _wanted(request, may_see)
    if request.GET.get("format") == "csv":
        return _csv(wanted)
    page = read_page(wanted, ROWS_SHOWN)
    older = ",".join(f"{kind}:{key}" for kind, key in page.before.items())
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "What happened",
        "rows": page.rows,
        "kinds": {kind: SOURCES[kind].title for kind in may_see},
        "chosen": chosen,
        "is_filtered": any(chosen.values()),
        "csv": urlencode({**_given(chosen), "format": "csv"}),
        "older": urlencode({**_given(chosen), "before": older}) if older else "",
        "is_first": not wanted.before,
        "exported": count(EXPORTED),
    }
    return TemplateResponse(request, "dashboard/happened.html", context)


def _given(chosen: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in chosen.items() if value}


def _wanted(request: HttpRequest, may_see: tuple[str, ...]) -> tuple[Wanted, dict[str, str]]:
    chosen = {name: request.GET.get(name, "").strip() for name in ("kind", "who", "from", "until")}
    kind, who = chosen["kind"], chosen["who"]
    if kind and kind not in may_see:
        raise Http404(f"There is no such kind; there are {', '.join(may_see)}.")
    if "\x00" in who or len(who) > _LONGEST_NAME:
        raise Http404("There is no such name.")
    begin, end = (moment_of(chosen[name]) if chosen[name] else None for name in ("from", "until"))
    kinds = (kind,) if kind else may_see
    return Wanted(kinds, who, begin, end, _place(request.GET.get("before", ""), kinds)), chosen


def _place(text: str, kinds: tuple[str, ...]) -> dict[str, int]:
    """Parses a place in the list, such as ``action:5,job:7``: for each source, the key below which a page begins.

    Raises ``Http404`` for any other text.
    """
    found = {}
    for part in filter(None, text[:500].split(",")):
        kind, _, key = part.partition(":")
        if kind not in kinds or not (key.isascii() and key.isdigit() and len(key) < 20):
            raise Http404("There is no such place in the list.")
        found[kind] = min(int(key), 2**63 - 1)
    return found


def _csv(wanted: Wanted) -> HttpResponse:
    rows = ([f"{row.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", row.who, row.kind, row.text] for row in _exported(wanted))
    text = csv_text(["time", "who", "kind", "what"], rows)
    headers = {"Content-Disposition": 'attachment; filename="what-happened.csv"'}
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)


def _exported(wanted: Wanted) -> Iterator[Happened]:
    number = 0
    while number < EXPORTED:
        page = read_page(wanted, min(1_000, EXPORTED - number))
        yield from page.rows
        number += len(page.rows)
        if not page.before:
            return
        wanted = replace(wanted, before=page.before)


happened_page = admin.site.admin_view(_happened_page)
