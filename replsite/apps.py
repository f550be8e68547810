"""Registers the site's own commands, checks and pages with Django. The app has no models."""

import os
from importlib.util import find_spec

from django.apps import AppConfig, apps
from django.core.checks import register

from replsite.conf import site_settings


def _others_read_metrics() -> bool:
    """Returns true if this process exports its metrics to files, or on a port, besides the page ``/metrics``.

    Then ``ready`` starts the counting. Otherwise only ``/metrics`` shows the metrics, and the import of the page's URLs
    (``replsite.urls``) starts the counting.
    """
    return bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR") or site_settings().metrics_ports)


class ReplsiteConfig(AppConfig):
    """The app configuration of the site."""

    name = "replsite"
    label = "replsite"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the system checks. Starts the process metrics, the record of logins and the JSON log, if they are wanted."""
        from replsite import checks  # noqa: PLC0415 - Django is ready only now
        from streams.runtime import log_format  # noqa: PLC0415
        from streams.runtime.command_line import SITE_CHECKS  # noqa: PLC0415

        for check in (checks.check_databases, checks.check_settings):
            register(check, SITE_CHECKS)
        if _others_read_metrics() and find_spec(
            "prometheus_client"
        ):  # of the extra `site`, which a service that needs only the commands does not install
            from replsite.metrics import process  # noqa: PLC0415

            process.start_counting()
        if apps.is_installed("django.contrib.admin"):
            from replsite.history import logins  # noqa: PLC0415

            logins.record_logins()
        if site_settings().log_format == "json":
            log_format.log_uncaught()
