"""Serves the live page over HTTP, to staff only.

The first rendering is HTML. The page's data is also served as JSON, for use without a WebSocket.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import Error as DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from replsite.dashboard.fragments import SEE_ROOMS, changes, render, rights_of
from replsite.dashboard.page import live_page_data
from replsite.dashboard.tables import TABLES
from replsite.http.database_down import away_response
from replsite.snapshot.shared import SHARED

__all__ = ["live_data", "live_page"]

#: Placeholder for a job's ID in an address, replaced by ``~``: the URL pattern takes numbers only.
_NO_JOB = 987_654_321
#: Entries of a row's menu, each with the permission that it needs.
_ACTIONS = {
    "disconnect": "streams.disconnect_reader",
    "forget": "streams.forget_reader",
    "retire": "streams.retire_writer",
    "end": "streams.end_writer",
    "cancel": "pipeline.cancel_job",
}


@require_safe
def _live_page(request: HttpRequest) -> HttpResponse:
    snapshot = SHARED.get()
    page = live_page_data(snapshot)
    rights = rights_of(request.user)
    shown = render(page, rights, snapshot.as_of)
    storage_at = snapshot.storage.as_of if snapshot.storage is not None else snapshot.as_of
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Streams",
        "as_of": snapshot.as_of,
        "word": page["health"]["word"],
        "shown": shown,
        "tables": [
            (name, TABLES[name], groups, storage_at if name in ("storage", "rooms") else snapshot.as_of)
            for name, groups in shown.tables.items()
            if name != "rooms" or SEE_ROOMS in rights
        ],
        "addresses": _addresses(),
        "may": " ".join(word for word, permission in _ACTIONS.items() if request.user.has_perm(permission)),
    }
    return TemplateResponse(request, "dashboard/live.html", context)


def _addresses() -> dict[str, str]:
    """Returns the addresses to which the entries of a row's menu lead. ``~`` stands for the row's name or ID."""
    found = {"cancel": reverse("admin:pipeline_job_cancel", args=[_NO_JOB]).replace(str(_NO_JOB), "~")}
    actions = {
        "disconnect": "disconnect-reader",
        "forget": "forget-reader",
        "retire": "retire-writer",
        "end": "end-writer",
    }
    found |= {word: f"{reverse(name)}?name=~" for word, name in actions.items()}
    return found | {"history": f"{reverse('live-history')}?stream=~", "who": f"{reverse('live-history')}?who=~"}


live_page = admin.site.admin_view(_live_page)


@gzip_page
@require_safe
def live_data(request: HttpRequest) -> HttpResponse:
    """Returns the whole page as JSON, in the form of the WebSocket's first message.

    Viewers who are not staff get 403 instead of the login page. While the database is away, the status is 503.
    """
    try:
        if not admin.site.has_permission(request):
            return JsonResponse({"error": "Log in as staff."}, status=403)
        found = changes(None, render(live_page_data(SHARED.get()), rights_of(request.user)))
    except DatabaseError as error:
        return away_response(request, error)
    response = JsonResponse({"number": 0, **found})
    response["Cache-Control"] = "no-store"
    return response
