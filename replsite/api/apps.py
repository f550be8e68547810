"""Registers the app ``replsite.api`` with Django. This module does not import the API; only the URLs of a server do."""

from django.apps import AppConfig


class ApiConfig(AppConfig):
    """The app of the HTTP API. A site without it has no tokens and does not answer below ``/api/``."""

    name = "replsite.api"
    label = "replsite_api"
    verbose_name = "HTTP API"
    default_auto_field = "django.db.models.BigAutoField"
