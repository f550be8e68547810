"""Gives the settings of the stream engine, as Django's settings have them, as one typed object.

``streams.stream_settings`` declares them. ``streams.checks`` reports values that cannot work.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.core.signals import setting_changed
from django.db import router

from streams.declared_settings import from_django
from streams.stream_settings import StreamSettings

__all__ = ["StreamSettings", "on_database", "on_this_host", "redis_password", "stream_settings"]

#: The most characters of a machine's name that become part of an instance name.
_LONGEST_HOST = 60


def redis_password() -> str:
    """Returns the password for Redis from the settings; empty if no password is set.

    Raises ``OSError`` for an unreadable file.
    """
    conf = stream_settings()
    if conf.redis_password or not conf.redis_password_file:
        return conf.redis_password
    return Path(conf.redis_password_file).read_text().rstrip("\r\n")


def on_this_host(pattern: str) -> str:
    """Returns the pattern with ``{host}`` replaced by the first part of this machine's name."""
    if not isinstance(pattern, str) or "{host}" not in pattern:
        return pattern
    short = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().partition(".")[0])[:_LONGEST_HOST]
    return pattern.replace("{host}", short or "host")


_cached: StreamSettings | None = None
_chosen: str | None = None


def stream_settings() -> StreamSettings:
    """Returns the settings. They are read once, and again after Django's ``override_settings``."""
    global _cached  # noqa: PLW0603 - one cache for the process
    if _cached is None:
        found = from_django(StreamSettings, settings)
        found = replace(found, writer=on_this_host(found.writer), database=_alias(found.database))
        if not apps.models_ready:  # the router cannot be asked yet
            return found
        _cached = found
    return _cached


def _alias(configured: str) -> str:
    """Returns the alias of the streams' database.

    Inside of ``on_database``, this is the alias that was given to ``on_database``. Otherwise it is the router's choice
    if the site has a router and does not set ``REPLSITE_DATABASE``, and else ``configured``.
    """
    if _chosen is not None:
        return _chosen
    is_routed = settings.DATABASE_ROUTERS and apps.models_ready and apps.is_installed("streams")
    if hasattr(settings, "REPLSITE_DATABASE") or not is_routed:
        return configured
    return router.db_for_write(apps.get_model("streams", "StreamPosition"))


@contextmanager
def on_database(alias: str) -> Iterator[None]:
    """Context manager inside which this process uses the streams of another database. Commands use it."""
    global _cached, _chosen
    before, _chosen, _cached = _chosen, alias, None
    try:
        yield
    finally:
        _chosen, _cached = before, None


def _forget(setting: str, **_: object) -> None:
    global _cached  # noqa: PLW0603
    if setting.startswith("REPLSITE_") or setting == "DATABASE_ROUTERS":
        _cached = None


setting_changed.connect(_forget, dispatch_uid="streams.conf")
