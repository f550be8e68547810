"""Registers the room ``streams`` with Django."""

from django.apps import AppConfig


class StreamsConfig(AppConfig):
    """The ``streams`` app: fixed label and key type, so that installing it elsewhere invents no migrations."""

    name = "streams"
    label = "streams"
    verbose_name = "Streams"
    default_auto_field = "django.db.models.BigAutoField"
