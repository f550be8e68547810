"""Supplies the admin with its sidebar, its icon, and a style for browsers that run no scripts."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy

from replsite import installed_apps

#: Lists of tables that belong to a task: the table, its title there, and its icon.
_TASKS = {
    "Rooms": (("events.Room", "Rooms", "meeting_room"), ("events.Event", "Events", "chat")),
    "Act": (
        ("pipeline.Job", "Jobs", "task"),
        ("streams.ParkedFact", "Dead letters", "mark_email_unread"),
        ("streams.StoredCursor", "Named readers", "bookmark"),
    ),
}


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Returns groups of links by task: watch, rooms, act; then for each app the tables that the user may see.

    The theme (unfold) calls this for every page.
    """
    watch = {"title": "Live streams", "icon": "monitoring", "link": reverse_lazy("live")}
    history = {"title": "History", "icon": "timeline", "link": reverse_lazy("live-history")}
    facts = {"title": "Facts", "icon": "receipt_long", "link": reverse_lazy("facts")}
    happened = {"title": "What happened", "icon": "fact_check", "link": reverse_lazy("happened")}
    items = [watch, history, happened, facts]
    if installed_apps.has("replsite.api"):
        items.append({"title": "HTTP API", "icon": "api", "link": reverse_lazy("api-page")})
    words = {"title": "Status words", "icon": "help", "link": reverse_lazy("status-words")}
    apps = admin.site.get_app_list(request)
    lists = {
        f"{app['app_label']}.{model['object_name']}": model["admin_url"]
        for app in apps
        for model in app["models"]
        if model["admin_url"]
    }
    groups: list[dict[str, Any]] = [{"title": "Watch", "items": [*items, words]}]
    for title, of_task in _TASKS.items():
        items = [{"title": name, "icon": icon, "link": lists[table]} for table, name, icon in of_task if table in lists]
        if title == "Act" and installed_apps.has("pipeline") and request.user.has_perm("pipeline.queue_job"):
            queue = reverse_lazy("admin:pipeline_job_queue")
            items.append({"title": "New job", "icon": "playlist_add", "link": queue})
        if title == "Act" and installed_apps.has("pipeline") and request.user.has_perm("pipeline.view_job"):
            items.append({"title": "Archives", "icon": "inventory_2", "link": reverse_lazy("archives")})
        if items:
            groups.append({"title": title, "items": items})
    for app in apps:
        items = [{"title": model["name"], "link": model["admin_url"]} for model in app["models"] if model["admin_url"]]
        title = f"Tables: {app['name']}"
        groups.append({"title": title, "separator": True, "collapsible": True, "items": items})
    return groups


def site_style(request: HttpRequest) -> str:
    return static("dashboard/site.css")


def local_time_script(request: HttpRequest) -> str:
    return static("dashboard/local_time.js")


def favicon(request: HttpRequest) -> str:
    return static("dashboard/icon.svg")


def noscript_style(request: HttpRequest) -> str:
    return static("dashboard/noscript.css")
