"""Maps URLs to the live page, history, facts, metrics, health and catch-up over HTTP. The root redirects to the live page.

A project includes them beside an admin of its own: ``path("streams/", include("replsite.urls"))``. The URLs of our own
site, with the admin, are in ``replsite.site_urls``.
"""

from django.urls import include, path, re_path
from django.urls.resolvers import URLPattern, URLResolver
from django.views.generic import RedirectView

from replsite import installed_apps
from replsite.dashboard.action_pages import action_urls
from replsite.dashboard.facts_page import facts_events, facts_page, facts_stream
from replsite.dashboard.views import live_csv, live_data, live_page
from replsite.dashboard.words_page import words_page
from replsite.health_views import health_view, live_view, ready_view
from replsite.history.happened_page import happened_page
from replsite.history.page import history_page
from replsite.metrics import process
from replsite.metrics.cluster import metrics_view
from streams.replication.server.catch_up_view import stream_updates_view

_REPLICATION = "_synapse/replication"

__all__ = ["pages", "served_to_machines", "urlpatterns"]

#: The pages for people.
pages: list[URLPattern | URLResolver] = [
    path("live/", live_page, name="live"),
    path("live/data/", live_data, name="live-data"),
    path("live/<slug:table>.csv", live_csv, name="live-csv"),
    path("history/", history_page, name="live-history"),
    path("happened/", happened_page, name="happened"),
    path("words/", words_page, name="status-words"),
    path("facts/", facts_page, name="facts"),
    path("facts/events/", facts_events, name="facts-events"),
    path("facts/stream/", facts_stream, name="facts-stream"),
    *action_urls(),
]
if installed_apps.has("events") and installed_apps.has("pipeline"):
    from replsite.dashboard.archives_page import archives_page

    pages.append(path("archives/", archives_page, name="archives"))

#: Metrics, health, and catch-up over HTTP.
served_to_machines: list[URLPattern | URLResolver] = [
    path("metrics", metrics_view, name="metrics"),
    path("health", health_view, name="health"),
    path("health/live", live_view, name="health-live"),
    path("health/ready", ready_view, name="health-ready"),
    path(
        f"{_REPLICATION}/get_repl_stream_updates/<str:stream>/<str:txn_id>", stream_updates_view, name="stream-updates"
    ),
    re_path(f"^{_REPLICATION}/", stream_updates_view),
]
if installed_apps.has("replsite.api"):
    served_to_machines.append(path("api/", include("replsite.api.urls")))

process.start_counting()  # the metrics page is one way to read what this process counts
urlpatterns = [path("", RedirectView.as_view(pattern_name="live")), *pages, *served_to_machines]
