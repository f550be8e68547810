"""The live page over HTTP: first rendering, and the same data as JSON for browsers without a WebSocket. Staff only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db import Error as DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from replsite.dashboard.changes import changes
from replsite.dashboard.page import JOBS, READERS, STREAMS, WORKERS, Group, live_page_data
from replsite.shared_snapshot import SHARED
from replsite.wording import duration

__all__ = ["live_data", "live_page"]


@require_safe
def _live_page(request: HttpRequest) -> HttpResponse:
    snapshot = SHARED.get()
    page = live_page_data(snapshot)
    for group in (*page["streams"], *page["readers"], *page["workers"], *page["jobs"]):
        _say_ages(group, snapshot.as_of)
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Streams",
        "as_of": snapshot.as_of,
        "health": page["health"],
        "tables": [
            {
                "id": "streams",
                "title": "Streams and writers",
                "about": "How far every writer of every stream is, worst first.",
                "nothing": "No stream is declared.",
                "columns": STREAMS,
                "groups": page["streams"],
            },
            {
                "id": "readers",
                "title": "Readers and connections",
                "about": "Who follows, and how far behind: what was sent to a connection, what a follower has handled.",
                "nothing": "Nobody follows. Try: manage.py follow tcp://HOST:PORT",
                "columns": READERS,
                "groups": page["readers"],
            },
            {
                "id": "jobs",
                "title": "Jobs",
                "about": "What is at work or waits, and what ended within a day.",
                "nothing": "No job is at work, and none ended within a day.",
                "columns": JOBS,
                "groups": page["jobs"],
            },
            {
                "id": "workers",
                "title": "Workers",
                "about": "What workers report, and how connections ended, on all servers.",
                "nothing": "No worker has reported anything.",
                "columns": WORKERS,
                "groups": page["workers"],
            },
        ],
    }
    return TemplateResponse(request, "dashboard/live.html", context)


def _say_ages(group: Group, now: datetime) -> None:
    """Without JavaScript an age is what it was when the page was made."""
    for row in (group["head"], *group["rows"]):
        for cell in row["cells"]:
            if "at" in cell:
                cell["text"] = duration((now - datetime.fromisoformat(cell["at"])).total_seconds()) + " ago"


live_page = admin.site.admin_view(_live_page)


@require_safe
def live_data(request: HttpRequest) -> JsonResponse:
    """Everything on the page, in the form of the WebSocket's first message. 403 instead of a login page."""
    if not admin.site.has_permission(request):
        return JsonResponse({"error": "Log in as staff."}, status=403)
    try:
        found = changes(None, live_page_data(SHARED.get()))
    except DatabaseError:
        return JsonResponse({"error": "The database cannot be read."}, status=503)
    response = JsonResponse({"number": 0, **found})
    response["Cache-Control"] = "no-store"
    return response
