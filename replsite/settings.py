"""Django settings of the site: the one place that reads the environment.

Importing this module opens no connection and starts no process. Without ``DATABASE_URL``, the database backend starts
the embedded PostgreSQL at the first connection. ``docs/reference/settings.md`` describes every variable.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

from replsite import environment
from streams.runtime.log_format import logging_config

# These commands show no page and serve no metrics. Loading the apps for pages and metrics would take a tenth of their start.
_IS_BRIEF = sys.argv[1:2] in (["help"], ["health"], ["streams"])
BASE_DIR = Path(__file__).resolve().parent.parent


def _secret_key(data_dir: Path) -> str:
    """Returns the configured key, or a key that is made once and kept in the data directory.

    Only the owner of the file can read the kept key.
    """
    if key := environment.text("REPLSITE_SECRET_KEY", ""):
        return key
    path = data_dir / "secret_key"
    try:
        return _kept_key(path)
    except OSError as error:
        raise ImproperlyConfigured(
            f"REPLSITE_DATA_DIR is {str(data_dir)!r}, and the key of the site cannot be kept there: {error}. Run as the user "
            "that made the folder, choose another REPLSITE_DATA_DIR, or set REPLSITE_SECRET_KEY."
        ) from error


def _kept_key(path: Path) -> str:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{get_random_secret_key()[:8].encode().hex()}")
        fresh.touch(mode=0o600)
        fresh.write_text(get_random_secret_key())
        try:
            # Several processes may start first at once. A and B both write a key of their own. A links its file to the final
            # name; B's link fails, and B reads A's key. A plain write would let each use its own key.
            path.hardlink_to(fresh)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_text()


def _days_or_never(text: str) -> float | None:
    """Parses a number of days. ``never`` gives None."""
    try:
        return None if text == "never" else float(text)
    except ValueError:
        raise ImproperlyConfigured(
            f"REPLSITE_CENSOR_AFTER_DAYS is {text!r}: write a number of days, or never."
        ) from None


def _ports(text: str) -> range:
    """Parses one port, or a range such as ``9101-9120``. Empty text gives no ports."""
    first, is_range, last = text.partition("-")
    try:
        ports = range(int(first), int(last if is_range else first) + 1) if text else range(0)
    except ValueError:
        ports = None
    if ports is None or (text and not (ports and ports[0] > 0 and ports[-1] < 2**16)):
        raise ImproperlyConfigured(f"REPLSITE_METRICS_PORTS is {text!r}: write a port, or two such as 9101-9120.")
    return ports


def _database() -> dict[str, Any]:
    """Returns the entry of ``DATABASES``: for the server in ``DATABASE_URL``, or else for the embedded server."""
    url = environment.text("DATABASE_URL", "")
    if not url:
        return {"ENGINE": "replsite.postgres.backend", "NAME": "replsite"}
    try:
        found: dict[str, Any] = dict(dj_database_url.parse(url, conn_max_age=600, conn_health_checks=True))
    except ValueError as error:
        raise ImproperlyConfigured(
            f"DATABASE_URL cannot be read: {error}. Write it as postgres://USER:PASSWORD@HOST:PORT/NAME."
        ) from error
    if found["ENGINE"] == "django.db.backends.postgresql":
        if not _IS_BRIEF:
            found["ENGINE"] = "django_prometheus.db.backends.postgresql"  # the same backend, and it counts queries
        # With these options a lost host is noticed within seconds. Options in DATABASE_URL win over them.
        keepalives = {
            "connect_timeout": 10,
            "tcp_user_timeout": 11_000,
            "keepalives": 1,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        found["OPTIONS"] = keepalives | found.get("OPTIONS", {})
    if direct := environment.text("REPLSITE_DATABASE_DIRECT", ""):
        found |= _behind_pooler(direct)
    return found


def _behind_pooler(direct: str) -> dict[str, Any]:
    """Returns entries to add to those of ``_database`` if ``DATABASE_URL`` names a pooler in transaction mode.

    ``direct`` is the HOST:PORT of the PostgreSQL server behind the pooler.
    """
    host, _, port = direct.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise ImproperlyConfigured(
            f"REPLSITE_DATABASE_DIRECT is {direct!r}: write HOST:PORT of the PostgreSQL server behind the pooler."
        )
    # Behind the pooler the next statement may run in another session, where a server-side cursor does not exist.
    return {"DIRECT": {"HOST": host.strip("[]"), "PORT": port}, "DISABLE_SERVER_SIDE_CURSORS": True}


# --- where things are ---------------------------------------------------------------------------------------------
# A checkout keeps its data in itself, an installed site in the folder where it is started.
_HOME = BASE_DIR if (BASE_DIR / "manage.py").exists() else Path.cwd()
REPLSITE_DATA_DIR = Path(environment.text("REPLSITE_DATA_DIR", str(_HOME / ".data"))).absolute()
REPLSITE_POSTGRES_BIN = environment.text("REPLSITE_POSTGRES_BIN", "")
REPLSITE_POSTGRES_FSYNC = environment.switch(
    "REPLSITE_POSTGRES_FSYNC", True
)  # off: fast, and a crash of the machine loses data

# --- Django -------------------------------------------------------------------------------------------------------
DEBUG = environment.switch("REPLSITE_DEBUG", False)
SECRET_KEY = _secret_key(REPLSITE_DATA_DIR)
ALLOWED_HOSTS = environment.list_of("REPLSITE_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS: list[str] = environment.list_of("REPLSITE_TRUSTED_ORIGINS", [])
INSTALLED_APPS = [
    *(["daphne"] if sys.argv[1:2] == ["runserver"] else []),  # importing its reactor takes a third of a command's start
    *([] if _IS_BRIEF else ["unfold"]),
    "django.contrib.admin.apps.SimpleAdminConfig" if _IS_BRIEF else "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    *([] if _IS_BRIEF else ["django_prometheus"]),
    "streams",
    "streams.catalog",
    "state",
    "events",
    "pipeline",
    "replsite",
    "replsite.api",
]
MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "replsite.http.form_limits.FormLimits",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "replsite.http.database_down.DatabaseDownMiddleware",
    "replsite.metrics.django.BoundedRequestMetrics",
]
ROOT_URLCONF = "replsite.site_urls"
ASGI_APPLICATION = "replsite.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "replsite" / "templates"],  # before those of the theme, of which some are extended
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
DATABASES = {"default": _database()}
# A wheel has the migrations inside their apps, a checkout in a folder of their own.
_IS_WHEEL = (BASE_DIR / "streams" / "migrations").is_dir()
MIGRATION_MODULES = {} if _IS_WHEEL else dict(import_module("migrations").MIGRATION_MODULES)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = True
FORMAT_MODULE_PATH = ["replsite.formats"]
USE_TZ = True
STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
PROMETHEUS_EXPORT_MIGRATIONS = False
STATIC_ROOT = (
    environment.text("REPLSITE_STATIC_ROOT", "") or None
)  # where collectstatic puts files for a web server in front
SESSION_ENGINE = "replsite.http.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = environment.switch("REPLSITE_HTTPS_ONLY", False)
SECURE_REDIRECT_EXEMPT = [r"^metrics$", r"^health", r"^_synapse/"]  # requested by machines nearby, in plain HTTP
SECURE_HSTS_SECONDS = 365 * 86_400 if SESSION_COOKIE_SECURE else 0
# These warn that HSTS does not include subdomains and preload. The domain's owner decides on both.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
UNFOLD = {
    "SITE_TITLE": "replsite",
    "SITE_HEADER": "replsite",
    "SITE_URL": None,
    "SITE_SUBHEADER": "streams and room history",
    "SITE_SYMBOL": "conversion_path",
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": "replsite.dashboard.navigation.favicon"},
    ],
    "STYLES": ["replsite.dashboard.navigation.noscript_style", "replsite.dashboard.navigation.site_style"],
    "SCRIPTS": ["replsite.dashboard.navigation.local_time_script"],
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "SIDEBAR": {
        "show_search": False,
        "show_all_applications": False,
        "navigation": "replsite.dashboard.navigation.sidebar",
    },
}

# --- replsite -----------------------------------------------------------------------------------------------------
REPLSITE_INSTANCE = environment.text("REPLSITE_INSTANCE", "master")
REPLSITE_SERVER_NAME = environment.text("REPLSITE_SERVER_NAME", "localhost")
REPLSITE_WRITERS = environment.json_of("REPLSITE_WRITERS", {})
REPLSITE_READERS: list[str] = environment.list_of("REPLSITE_READERS", [])
REPLSITE_SEND_FEDERATION = environment.switch("REPLSITE_SEND_FEDERATION", True)
REPLSITE_FAILOVER_KEEPS_EPOCH = environment.switch(
    "REPLSITE_FAILOVER_KEEPS_EPOCH", False
)  # true if the standbys are synchronous
REPLSITE_RETIRED_SHOWN_SECONDS = environment.number("REPLSITE_RETIRED_SHOWN_SECONDS", 3600.0)
REPLSITE_PING_INTERVAL_SECONDS = environment.number("REPLSITE_PING_INTERVAL_SECONDS", 5.0)
REPLSITE_PING_TIMEOUT_SECONDS = environment.number("REPLSITE_PING_TIMEOUT_SECONDS", 15.0)
REPLSITE_SEND_BUFFER_LIMIT_BYTES = environment.whole_number("REPLSITE_SEND_BUFFER_LIMIT_BYTES", 16 * 1024 * 1024)
REPLSITE_SEND_STALL_LIMIT_SECONDS = environment.number("REPLSITE_SEND_STALL_LIMIT_SECONDS", 30.0)
REPLSITE_CONNECTION_LIMIT = environment.whole_number("REPLSITE_CONNECTION_LIMIT", 5_000)
REPLSITE_CONNECTION_ADDRESS_LIMIT = environment.whole_number("REPLSITE_CONNECTION_ADDRESS_LIMIT", 2_500)
REPLSITE_LINE_LIMIT_BYTES = environment.whole_number("REPLSITE_LINE_LIMIT_BYTES", 16_384)
REPLSITE_CLOSE_LIMIT_SECONDS = environment.number("REPLSITE_CLOSE_LIMIT_SECONDS", 25.0)
REPLSITE_HTTP_CONNECTION_LIMIT = environment.whole_number("REPLSITE_HTTP_CONNECTION_LIMIT", 2_500)
REPLSITE_HTTP_ADDRESS_LIMIT = environment.whole_number("REPLSITE_HTTP_ADDRESS_LIMIT", 500)
REPLSITE_HTTP_HEAD_LIMIT_SECONDS = environment.number("REPLSITE_HTTP_HEAD_LIMIT_SECONDS", 10.0)
REPLSITE_HTTP_BODY_LIMIT_SECONDS = environment.number("REPLSITE_HTTP_BODY_LIMIT_SECONDS", 60.0)
REPLSITE_HTTP_BUFFER_LIMIT_BYTES = environment.whole_number("REPLSITE_HTTP_BUFFER_LIMIT_BYTES", 256 * 1024 * 1024)
REPLSITE_REQUEST_LIMIT = environment.whole_number("REPLSITE_REQUEST_LIMIT", 20)
REPLSITE_API_REQUESTS_PER_MINUTE = environment.whole_number("REPLSITE_API_REQUESTS_PER_MINUTE", 600)
REPLSITE_HTTP_BODY_LIMIT_BYTES = environment.whole_number("REPLSITE_HTTP_BODY_LIMIT_BYTES", 4 * 1024 * 1024)
REPLSITE_WEBSOCKET_BUFFER_LIMIT_BYTES = environment.whole_number(
    "REPLSITE_WEBSOCKET_BUFFER_LIMIT_BYTES", 4 * 1024 * 1024
)
REPLSITE_HANDSHAKE_LIMIT_SECONDS = environment.number("REPLSITE_HANDSHAKE_LIMIT_SECONDS", 10.0)
REPLSITE_TLS_CERTIFICATE = environment.text("REPLSITE_TLS_CERTIFICATE", "")
REPLSITE_TLS_KEY = environment.text("REPLSITE_TLS_KEY", "")
REPLSITE_TLS_CLIENT_CA = environment.text("REPLSITE_TLS_CLIENT_CA", "")
REPLSITE_WIRE_RIGHTS: Any = environment.json_of("REPLSITE_WIRE_RIGHTS", {})
REPLSITE_TLS_SERVER_CA = environment.text("REPLSITE_TLS_SERVER_CA", "")
REPLSITE_WORKER_REPORT_LIMIT = environment.whole_number("REPLSITE_WORKER_REPORT_LIMIT", 100_000)
REPLSITE_WORKER_SILENCE_SECONDS = environment.number("REPLSITE_WORKER_SILENCE_SECONDS", 300.0)
REPLSITE_USER_ADDRESS_DAYS = environment.number("REPLSITE_USER_ADDRESS_DAYS", 28.0)
REPLSITE_USER_ADDRESS_LIMIT = environment.whole_number("REPLSITE_USER_ADDRESS_LIMIT", 1_000_000)
REPLSITE_REDIS_PASSWORD = environment.text("REPLSITE_REDIS_PASSWORD", "")
REPLSITE_REDIS_PASSWORD_FILE = environment.text("REPLSITE_REDIS_PASSWORD_FILE", "")
REPLSITE_REPLICATION_SECRET = environment.text("REPLSITE_REPLICATION_SECRET", "")
REPLSITE_RETENTION_DEFAULT_SECONDS = environment.number("REPLSITE_RETENTION_DEFAULT_SECONDS", 0.0)
REPLSITE_RETENTION_SHORTEST_SECONDS = environment.number("REPLSITE_RETENTION_SHORTEST_SECONDS", 0.0)
REPLSITE_RETENTION_LONGEST_SECONDS = environment.number("REPLSITE_RETENTION_LONGEST_SECONDS", 0.0)
REPLSITE_CENSOR_AFTER_DAYS = _days_or_never(environment.text("REPLSITE_CENSOR_AFTER_DAYS", "7"))
REPLSITE_RECORDED_DAYS_KEPT = environment.number("REPLSITE_RECORDED_DAYS_KEPT", 7.0)
REPLSITE_RECORDED_FACTS_KEPT = environment.whole_number("REPLSITE_RECORDED_FACTS_KEPT", 1_000_000)
REPLSITE_HOT_ENTRIES = environment.whole_number("REPLSITE_HOT_ENTRIES", 10_000)
REPLSITE_HOT_WAITER_LIMIT = environment.whole_number("REPLSITE_HOT_WAITER_LIMIT", 10_000)
REPLSITE_BROWSER_LIMIT = environment.whole_number("REPLSITE_BROWSER_LIMIT", 2_000)
REPLSITE_BROWSER_ANSWER_BYTES = environment.whole_number("REPLSITE_BROWSER_ANSWER_BYTES", 4 * 1024 * 1024)
REPLSITE_BROWSER_ANSWER_SECONDS = environment.number("REPLSITE_BROWSER_ANSWER_SECONDS", 300.0)
REPLSITE_PLAIN_NETWORKS: list[str] = environment.list_of("REPLSITE_PLAIN_NETWORKS", [])
REPLSITE_PROXY_NETWORKS: list[str] = environment.list_of("REPLSITE_PROXY_NETWORKS", [])
REPLSITE_NOTIFY_SOCKET = environment.text("NOTIFY_SOCKET", "")  # systemd sets this variable and the next one
REPLSITE_WATCHDOG_SECONDS = environment.whole_number("WATCHDOG_USEC", 0) / 1_000_000
# Limits of the status words, see replsite.status.verdicts.
REPLSITE_BLOCKED_AFTER_SECONDS = environment.number("REPLSITE_BLOCKED_AFTER_SECONDS", 10.0)
REPLSITE_STUCK_AFTER_SECONDS = environment.number("REPLSITE_STUCK_AFTER_SECONDS", 10.0)
REPLSITE_LEFT_BEHIND_AFTER_SECONDS = environment.number("REPLSITE_LEFT_BEHIND_AFTER_SECONDS", 60.0)
REPLSITE_READER_PERIODS: Any = environment.json_of("REPLSITE_READER_PERIODS", {})
REPLSITE_ARCHIVE_FOLDER = Path(
    environment.text("REPLSITE_ARCHIVE_FOLDER", str(REPLSITE_DATA_DIR / "archives"))
).absolute()
REPLSITE_IMPORT_FOLDER = Path(environment.text("REPLSITE_IMPORT_FOLDER", str(REPLSITE_DATA_DIR / "import"))).absolute()
REPLSITE_JOB_HISTORY_DAYS = environment.number("REPLSITE_JOB_HISTORY_DAYS", 90.0)
REPLSITE_JOB_HISTORY_COUNT = environment.whole_number("REPLSITE_JOB_HISTORY_COUNT", 10_000)
REPLSITE_SPARK_MASTER = environment.text("REPLSITE_SPARK_MASTER", "local[2]")
REPLSITE_SPARK_CONF = environment.json_of("REPLSITE_SPARK_CONF", {})
REPLSITE_SPARK_EXECUTOR_SECONDS = environment.number("REPLSITE_SPARK_EXECUTOR_SECONDS", 60.0)
REPLSITE_SPARK_PAGE_PORT = environment.whole_number("REPLSITE_SPARK_PAGE_PORT", None)
REPLSITE_SYNAPSE_METRIC_NAMES = environment.switch("REPLSITE_SYNAPSE_METRIC_NAMES", True)
REPLSITE_HEALTH_SECONDS = environment.number("REPLSITE_HEALTH_SECONDS", 5.0)
REPLSITE_DISK_RESERVE_BYTES = environment.whole_number("REPLSITE_DISK_RESERVE_BYTES", 1_000_000_000)
REPLSITE_METRICS_HOST = environment.text("REPLSITE_METRICS_HOST", "127.0.0.1")
REPLSITE_METRICS_PORTS = _ports(environment.text("REPLSITE_METRICS_PORTS", ""))
REPLSITE_EXPECTED_WRITERS: Any = environment.json_of("REPLSITE_EXPECTED_WRITERS", {})
REPLSITE_JOB_PERIODS: Any = environment.json_of("REPLSITE_JOB_PERIODS", {})

# --- logging ------------------------------------------------------------------------------------------------------
REPLSITE_LOG_FORMAT = environment.text("REPLSITE_LOG_FORMAT", "key-value")
try:
    LOGGING = logging_config(
        REPLSITE_LOG_FORMAT,
        environment.text("REPLSITE_LOG_LEVEL", "INFO").upper(),
        secrets=[
            SECRET_KEY,
            REPLSITE_REPLICATION_SECRET,
            REPLSITE_REDIS_PASSWORD,
            str(DATABASES["default"].get("PASSWORD", "")),
        ],
    )
except ValueError as error:
    raise ImproperlyConfigured(f"REPLSITE_LOG_FORMAT: {error}.") from error
if not isinstance(logging.getLevelNamesMapping().get(LOGGING["root"]["level"]), int):
    raise ImproperlyConfigured(
        f"REPLSITE_LOG_LEVEL is {LOGGING['root']['level']!r}: write DEBUG, INFO, WARNING or ERROR."
    )
