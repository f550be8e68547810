"""System checks of room history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import router


@register(Tags.database)
def check_catalog(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Returns an error if tables of rooms are created without those of the homeserver streams, which rooms write."""
    wanted = [alias for alias in databases or () if router.allow_migrate(alias, "events")]
    if apps.is_installed("streams.catalog") or not wanted:
        return []
    text = "Rooms write the streams of a homeserver, whose tables are made by the app 'streams.catalog'."
    return [Error(text, hint='Add "streams.catalog" to INSTALLED_APPS.', id="events.E001")]
