"""Django settings of the site: the one place that reads the environment.

Its own settings are declared elsewhere, each with its default, bounds and meaning: ``replsite/site_settings.py`` (the site,
``DATABASE_URL``), ``streams/stream_settings.py`` (streams, rooms and HTTP) and ``pipeline/pipeline_settings.py``. Code asks
``conf.py`` beside them.

Importing this module opens no connection and starts no process. Without ``DATABASE_URL``, the database backend starts
the embedded PostgreSQL at the first connection. ``docs/reference/settings.md`` describes every variable.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

from pipeline.pipeline_settings import PipelineSettings
from replsite.site_settings import SiteSettings, StartSettings
from streams.declared_settings import BadSetting, as_django, from_texts, secrets_of
from streams.runtime.log_format import logging_config
from streams.stream_settings import StreamSettings

# These commands show no page and serve no metrics. Loading the apps for pages and metrics would take a tenth of their start.
_IS_BRIEF = sys.argv[1:2] in (["help"], ["health"], ["streams"])
_COUNTS_REQUESTS = not _IS_BRIEF and find_spec("django_prometheus") is not None  # of the extra `django-metrics`
BASE_DIR = Path(__file__).resolve().parent.parent
# A checkout keeps its data in itself, an installed site in the folder where it is started.
_HOME = BASE_DIR if (BASE_DIR / "manage.py").exists() else Path.cwd()
try:
    _START = from_texts(StartSettings, os.environ)
    _SITE = from_texts(SiteSettings, os.environ, data_dir=_HOME / ".data")
    _PIPELINE = from_texts(
        PipelineSettings,
        os.environ,
        archive_folder=_SITE.data_dir / "archives",
        import_folder=_SITE.data_dir / "import",
    )
    _STREAMS = from_texts(StreamSettings, os.environ)
except BadSetting as error:
    raise ImproperlyConfigured(str(error)) from None
globals().update({**as_django(_SITE), **as_django(_PIPELINE), **as_django(_STREAMS)})


def _secret_key(data_dir: Path) -> str:
    """Returns the configured key, or a key that is made once and kept in the data directory.

    Only the owner of the file can read the kept key.
    """
    if _START.secret_key:
        return _START.secret_key
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


def _database() -> dict[str, Any]:
    if not (url := _START.database_url):
        return {"ENGINE": "replsite.postgres.backend", "NAME": "replsite"}
    try:
        found: dict[str, Any] = dict(dj_database_url.parse(url, conn_max_age=600, conn_health_checks=True))
    except ValueError as error:
        raise ImproperlyConfigured(
            f"DATABASE_URL cannot be read: {error}. Write it as postgres://USER:PASSWORD@HOST:PORT/NAME."
        ) from error
    if found["ENGINE"] == "django.db.backends.postgresql":
        if _COUNTS_REQUESTS:
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
    if _START.database_direct:
        found |= _behind_pooler(_START.database_direct)
    return found


def _mail() -> dict[str, Any]:
    """Returns Django's settings for mail."""
    sender = _START.mail_from or f"replsite@{socket.gethostname()}"
    found: dict[str, Any] = {"DEFAULT_FROM_EMAIL": sender, "SERVER_EMAIL": sender}
    if not _START.mail_url:
        return found
    try:
        url = urlsplit(_START.mail_url)
        port = url.port
    except ValueError:
        url, port = urlsplit(""), None
    if url.scheme == "file" and url.path:
        backend = "django.core.mail.backends.filebased.EmailBackend"
        return found | {"EMAIL_BACKEND": backend, "EMAIL_FILE_PATH": unquote(url.path)}
    ports = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
    # In smtps://USER:12/34@HOST the host would be USER, and the port 12.
    if url.scheme not in ports or not url.hostname or url.path.strip("/") or url.query or url.fragment:
        raise ImproperlyConfigured(
            "REPLSITE_MAIL_URL cannot be read: write smtp+starttls://USER:PASSWORD@HOST:587, smtps://USER:PASSWORD@HOST, "
            "smtp://HOST:25 or file:///FOLDER. In USER and PASSWORD write %2F for /, %3F for ?, %23 for #, %40 for @, %25 for %."
        )
    return found | {
        "EMAIL_HOST": url.hostname, "EMAIL_PORT": port or ports[url.scheme],
        "EMAIL_HOST_USER": unquote(url.username or ""), "EMAIL_HOST_PASSWORD": unquote(url.password or ""),
        "EMAIL_USE_TLS": url.scheme == "smtp+starttls", "EMAIL_USE_SSL": url.scheme == "smtps",
    }  # fmt: skip


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


# --- Django -------------------------------------------------------------------------------------------------------
DEBUG = _START.debug
globals().update(_mail())
SECRET_KEY = _secret_key(_SITE.data_dir)
ALLOWED_HOSTS = list(_START.allowed_hosts)
CSRF_TRUSTED_ORIGINS = list(_START.trusted_origins)
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
    *(["django_prometheus"] if _COUNTS_REQUESTS else []),
    "streams",
    "streams.catalog",
    "state",
    "events",
    "pipeline",
    "replsite",
    "replsite.api",
]
MIDDLEWARE = [
    *(["django_prometheus.middleware.PrometheusBeforeMiddleware"] if _COUNTS_REQUESTS else []),
    "django.middleware.security.SecurityMiddleware",
    "replsite.http.static_files.StaticFiles",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "replsite.http.form_limits.FormLimits",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "replsite.http.database_down.DatabaseDownMiddleware",
    *(["replsite.metrics.django.BoundedRequestMetrics"] if _COUNTS_REQUESTS else []),
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
STATIC_ROOT = _START.static_root or None
SESSION_ENGINE = "replsite.http.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = _START.https_only
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

# --- logging ------------------------------------------------------------------------------------------------------
try:
    LOGGING = logging_config(
        _SITE.log_format,
        _START.log_level.upper(),
        secrets=[SECRET_KEY, *secrets_of(_STREAMS), str(DATABASES["default"].get("PASSWORD", ""))],
    )
except ValueError as error:
    raise ImproperlyConfigured(f"REPLSITE_LOG_FORMAT: {error}.") from error
if not isinstance(logging.getLevelNamesMapping().get(LOGGING["root"]["level"]), int):
    raise ImproperlyConfigured(
        f"REPLSITE_LOG_LEVEL is {LOGGING['root']['level']!r}: write DEBUG, INFO, WARNING or ERROR."
    )
