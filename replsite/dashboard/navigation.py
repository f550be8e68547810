"""Supplies the admin with its sidebar, its icon, and a style for browsers that run no scripts."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy

__all__ = ["favicon", "noscript_style", "sidebar"]


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Returns groups of links: live page, history and statistics first, then for each app the tables that the user may see.

    The theme (unfold) calls this for every page.
    """
    watch = {"title": "Live streams", "icon": "monitoring", "link": reverse_lazy("live")}
    history = {"title": "History", "icon": "timeline", "link": reverse_lazy("live-history")}
    statistics = {"title": "Statistics", "icon": "bar_chart", "link": reverse_lazy("statistics")}
    groups: list[dict[str, Any]] = [{"title": "Watch", "items": [watch, history, statistics]}]
    for app in admin.site.get_app_list(request):
        items = [{"title": model["name"], "link": model["admin_url"]} for model in app["models"] if model["admin_url"]]
        groups.append({"title": app["name"], "separator": True, "collapsible": True, "items": items})
    return groups


def favicon(request: HttpRequest) -> str:
    """Returns the address of the icon in the browser's tab."""
    return static("dashboard/icon.svg")


def noscript_style(request: HttpRequest) -> str:
    """Returns the address of the style sheet for browsers that run no scripts."""
    return static("dashboard/noscript.css")
