"""Registers the site's own commands, checks and pages with Django; it has no models."""

from django.apps import AppConfig


class ReplsiteConfig(AppConfig):
    """The site as an app."""

    name = "replsite"
    label = "replsite"
    default_auto_field = "django.db.models.BigAutoField"
