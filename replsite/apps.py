"""Registers the site's own commands, checks and pages with Django. The app has no models."""

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import register


class ReplsiteConfig(AppConfig):
    """The app configuration of the site."""

    name = "replsite"
    label = "replsite"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the system checks and starts the process metrics."""
        from replsite import checks  # noqa: PLC0415 - Django is ready only now
        from streams.runtime import log_format  # noqa: PLC0415

        for check in (checks.check_databases, checks.check_settings, checks.check_https):
            register(check)
        if apps.is_installed("events"):  # a service may use the commands alone
            from replsite.metrics import process  # noqa: PLC0415

            process.begin()
        if getattr(settings, "REPLSITE_LOG_FORMAT", "") == "json":
            log_format.log_uncaught()
