"""Checks the site's configuration before anything runs.

    replsite.E001   a database that is not PostgreSQL
    replsite.E002   a setting of the site that cannot be used
    replsite.W001   pages need HTTPS, and no proxy is configured that says which requests came by HTTPS

The checks open no connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from replsite import rooms
from replsite.http.proxy import networks_of
from replsite.status.expected_writers import wrong_expectations
from streams import registry
from streams.conf import stream_settings

__all__ = ["check_databases", "check_https", "check_settings"]


def check_databases(**_: Any) -> list[CheckMessage]:
    """Returns an error if the streams' database is not PostgreSQL. Reads the engine only, without a connection."""
    return [
        Error(
            f"The database {alias!r} is {connections[alias].vendor}; replsite needs PostgreSQL.",
            hint=(
                "Streams are built on sequences, advisory locks, NOTIFY, COPY and range types, which others lack."
                " Set DATABASE_URL=postgres://USER:PASSWORD@HOST:PORT/NAME, or unset it to use the embedded server."
            ),
            id="replsite.E001",
        )
        for alias in [stream_settings().database]
        if connections[alias].vendor != "postgresql"
    ]


def check_settings(**_: Any) -> list[CheckMessage]:
    """Returns an error for each unusable setting that only the site reads.

    Every other package checks its own settings.
    """
    return [
        Error(text, hint="See docs/reference/settings.md for its default.", id="replsite.E002") for text in _wrong()
    ]


def check_https(**_: Any) -> list[CheckMessage]:
    """Returns a warning if every request would be redirected to HTTPS in an endless loop.

    The site's own servers speak plain HTTP. So if ``REPLSITE_HTTPS_ONLY`` is set, a proxy must be configured that says
    which requests came by HTTPS.
    """
    is_told = getattr(settings, "REPLSITE_PROXY_NETWORKS", ()) or settings.SECURE_PROXY_SSL_HEADER
    if is_told or not settings.SECURE_SSL_REDIRECT:
        return []
    hint = (
        "Name the proxy that speaks HTTPS, for instance REPLSITE_PROXY_NETWORKS=127.0.0.1/32, and let it set X-Forwarded-Proto"
        " (docs/how-to/run-in-production.md). Where the server itself speaks HTTPS, silence this by SILENCED_SYSTEM_CHECKS."
    )
    text = (
        "REPLSITE_HTTPS_ONLY is set and REPLSITE_PROXY_NETWORKS is empty: browsers are sent to HTTPS again and again."
    )
    return [Warning(text, hint=hint, id="replsite.W001")]


def _wrong() -> Iterator[str]:
    try:
        networks_of(getattr(settings, "REPLSITE_PROXY_NETWORKS", ()))
    except ImproperlyConfigured as error:
        yield str(error)
    for name in (
        "REPLSITE_BLOCKED_AFTER_SECONDS",
        "REPLSITE_STUCK_AFTER_SECONDS",
        "REPLSITE_LEFT_BEHIND_AFTER_SECONDS",
    ):
        if not getattr(settings, name, 10.0) > 0:
            yield f"{name} is {getattr(settings, name)}: everything would be trouble at once. Write seconds above 0."
    yield from _wrong_writers(getattr(settings, "REPLSITE_EXPECTED_WRITERS", {}))
    yield from _wrong_periods(getattr(settings, "REPLSITE_JOB_PERIODS", {}))
    if not _are_periods(getattr(settings, "REPLSITE_READER_PERIODS", {})):
        yield 'REPLSITE_READER_PERIODS must give readers their seconds between two runs, above 0: {"mailer": 300}.'
    seconds = getattr(settings, "REPLSITE_HEALTH_SECONDS", 5.0)
    if not seconds > 0:  # true for NaN, too
        yield f"REPLSITE_HEALTH_SECONDS is {seconds}: no probe could be answered. Write seconds above 0."
    reserve = getattr(settings, "REPLSITE_DISK_RESERVE_BYTES", 0)
    if reserve < 0:
        yield f"REPLSITE_DISK_RESERVE_BYTES is {reserve}: write 0 or more."


def _wrong_writers(expected: Any) -> Iterator[str]:
    wrong = list(wrong_expectations(expected))
    yield from wrong
    if not wrong and (unknown := sorted(set(expected) - set(registry.names()))):
        text = (
            f"REPLSITE_EXPECTED_WRITERS names {', '.join(unknown)}, no stream: no writer could ever be missing there."
        )
        yield f"{text} There are: {', '.join(registry.names())}."


def _are_periods(periods: Any) -> bool:
    return isinstance(periods, dict) and all(isinstance(s, int | float) and s > 0 for s in periods.values())


def _wrong_periods(periods: Any) -> Iterator[str]:
    if not _are_periods(periods):
        yield 'REPLSITE_JOB_PERIODS must give kinds of job their seconds, above 0: {"censor": 86400}.'
    elif periods and rooms.has("pipeline"):
        from pipeline.jobs.run import job_kinds  # noqa: PLC0415 - a site may have no pipeline

        if unknown := sorted(periods.keys() - job_kinds().keys()):
            text = f"REPLSITE_JOB_PERIODS names {', '.join(unknown)}, no kind of job: it would be overdue for ever."
            yield f"{text} There are: {', '.join(job_kinds())}."
