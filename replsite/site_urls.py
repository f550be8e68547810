"""Maps the URLs of our own site: the admin with the live page and history in it, metrics, health and catch-up over HTTP."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from replsite.http.database_down import handler500
from replsite.http.error_pages import handler403, handler404
from replsite.urls import pages, served_to_machines

__all__ = ["handler403", "handler404", "handler500", "urlpatterns"]

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="live")),
    path("admin/", include(pages)),
    path("admin/", admin.site.urls),
    *served_to_machines,
]
