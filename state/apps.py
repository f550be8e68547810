"""Registers the room ``state`` with Django."""

from django.apps import AppConfig


class StateConfig(AppConfig):
    """The ``state`` app: fixed label and key type, so that installing it elsewhere invents no migrations."""

    name = "state"
    label = "state"
    verbose_name = "State"
    default_auto_field = "django.db.models.BigAutoField"
