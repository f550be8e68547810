"""Registers the app ``streams.catalog`` with Django."""

from django.apps import AppConfig


class CatalogConfig(AppConfig):
    """The app of a homeserver's streams besides events. The engine, ``streams``, works without it."""

    name = "streams.catalog"
    label = "streams_catalog"
    verbose_name = "Streams of a homeserver"
    default_auto_field = "django.db.models.BigAutoField"
