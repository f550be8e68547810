"""The live page over HTTP: first rendering, and the same data as JSON for browsers without a WebSocket. Staff only."""

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
from replsite.dashboard.tables import SHOWN
from replsite.http.database_down import away_response
from replsite.snapshot.shared import SHARED

__all__ = ["live_data", "live_page"]

_NO_JOB = 987_654_321
#: What a row's menu offers, and who may.
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
            (name, SHOWN[name], groups, storage_at if name in ("storage", "rooms") else snapshot.as_of)
            for name, groups in shown.tables.items()
            if name != "rooms" or SEE_ROOMS in rights
        ],
        "addresses": _addresses(),
        "may": " ".join(word for word, permission in _ACTIONS.items() if request.user.has_perm(permission)),
    }
    return TemplateResponse(request, "dashboard/live.html", context)


def _addresses() -> dict[str, str]:
    """Returns where a row's menu leads; ``~`` stands for what the row names."""
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
    """Everything on the page, in the form of the WebSocket's first message. 403 instead of a login page."""
    try:
        if not admin.site.has_permission(request):
            return JsonResponse({"error": "Log in as staff."}, status=403)
        found = changes(None, render(live_page_data(SHARED.get()), rights_of(request.user)))
    except DatabaseError as error:
        return away_response(request, error)
    response = JsonResponse({"number": 0, **found})
    response["Cache-Control"] = "no-store"
    return response
