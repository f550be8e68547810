"""Maps URLs to the live page, the admin, metrics, health and catch-up over HTTP. The root redirects to the live page."""

from django.contrib import admin
from django.urls import path, re_path
from django.urls.resolvers import URLPattern, URLResolver
from django.views.generic import RedirectView

from replsite.dashboard.actions import action_urls
from replsite.dashboard.views import live_data, live_page
from replsite.health_views import health_view, live_view, ready_view
from replsite.history.page import history_page
from replsite.history.statistics_page import statistics_page
from replsite.http.database_down import handler500
from replsite.metrics.cluster import metrics_view
from streams.replication.server.http_catch_up import stream_updates_view

_REPLICATION = "_synapse/replication"

__all__ = ["handler500", "urlpatterns"]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(pattern_name="live")),
    path("admin/live/", live_page, name="live"),
    path("admin/live/data/", live_data, name="live-data"),
    path("admin/history/", history_page, name="live-history"),
    path("admin/statistics/", statistics_page, name="statistics"),
    *action_urls(),
    path("admin/", admin.site.urls),
    path("metrics", metrics_view, name="metrics"),
    path("health", health_view, name="health"),
    path("health/live", live_view, name="health-live"),
    path("health/ready", ready_view, name="health-ready"),
    path(
        f"{_REPLICATION}/get_repl_stream_updates/<str:stream>/<str:txn_id>", stream_updates_view, name="stream-updates"
    ),
    re_path(f"^{_REPLICATION}/", stream_updates_view),
]
