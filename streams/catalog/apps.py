"""Registers the app ``streams.catalog`` with Django."""

from typing import Any

from django.apps import AppConfig


class CatalogConfig(AppConfig):
    """The app of a homeserver's streams besides events. The engine, ``streams``, works without it."""

    name = "streams.catalog"
    label = "streams_catalog"
    verbose_name = "Streams of a homeserver"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers functions that delete dependent rows when a stream in memory begins a new generation."""
        from streams import registry  # noqa: PLC0415 - models are loaded now

        registry.get("typing").when_begun_anew.append(_clear_typing)
        registry.get("federation").when_begun_anew.append(_forget_acknowledgements)


def _clear_typing(cursor: Any) -> None:
    cursor.execute("DELETE FROM streams_typinguser")


def _forget_acknowledgements(cursor: Any) -> None:
    """Deletes the acknowledgements, because they name tokens of the previous generation."""
    cursor.execute("DELETE FROM streams_federationacknowledgement")
