"""Checks the site's configuration before anything runs.

    replsite.E001   a database that is not PostgreSQL
    replsite.E002   a setting of the site that cannot be used

The checks open no connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from django.core.checks import CheckMessage, Error
from django.db import connections

from replsite import installed_apps
from replsite.conf import site_settings
from replsite.status.expected_writers import wrong_expectations
from streams import registry
from streams.conf import stream_settings
from streams.declared_settings import out_of_bounds
from streams.replication.errors import BadAddress
from streams.replication.protocol.access import networks_of


def check_databases(**_: Any) -> list[CheckMessage]:
    """Returns an error if the streams' database is not PostgreSQL. Reads the engine only, without a connection."""
    return [
        Error(
            f"The database {alias!r} is {connections[alias].vendor}; replsite needs PostgreSQL.",
            hint=(
                "Streams are built on sequences, advisory locks, NOTIFY, COPY and range types, which others lack."
                ' In DATABASES, name a server of PostgreSQL, or give it "ENGINE": "replsite.postgres.backend", the embedded one.'
                " The settings of this project's own site read DATABASE_URL; without it they use the embedded server."
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
    wrong = [(text, "See docs/reference/settings.md for its default.") for text in _wrong()]
    return [Error(text, hint=hint, id="replsite.E002") for text, hint in [*wrong, *out_of_bounds(site_settings())]]


def _wrong() -> Iterator[str]:
    try:
        networks_of(stream_settings().proxy_networks, "REPLSITE_PROXY_NETWORKS")
    except BadAddress as error:
        yield str(error)
    site = site_settings()
    yield from _wrong_writers(site.expected_writers)
    yield from _wrong_periods(site.job_periods)
    yield from _wrong_notices(site)
    if not _are_periods(site.reader_periods):
        yield 'REPLSITE_READER_PERIODS must give readers their seconds between two runs, above 0: {"mailer": 300}.'


def _wrong_notices(site: Any) -> Iterator[str]:
    if site.notice_url and urlsplit(site.notice_url).scheme not in ("http", "https"):
        yield "REPLSITE_NOTICE_URL must be an address that begins with https:// or http://."
    if site.notice_link and not (
        urlsplit(site.notice_link).scheme in ("http", "https") and urlsplit(site.notice_link).hostname
    ):
        yield "REPLSITE_NOTICE_LINK must be the site's own address, such as https://ops.example.org."
    if unfit := [address for address in site.notice_mail if "@" not in address or any(c.isspace() for c in address)]:
        yield f"REPLSITE_NOTICE_MAIL has {', '.join(map(repr, unfit))}: write mail addresses, with commas between them."


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
    elif periods and installed_apps.has("pipeline"):
        from streams.jobs.operation import operations  # noqa: PLC0415 - a site may have no pipeline

        if unknown := sorted(periods.keys() - operations().keys()):
            text = f"REPLSITE_JOB_PERIODS names {', '.join(unknown)}, no kind of job: it would be overdue for ever."
            yield f"{text} There are: {', '.join(operations())}."
