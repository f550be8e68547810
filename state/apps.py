"""Registers the app ``state`` with Django."""

from django.apps import AppConfig


class StateConfig(AppConfig):
    """Configuration of the ``state`` app.

    Label and key type are fixed, so that a project that installs the app gets no migrations of its own.
    """

    name = "state"
    label = "state"
    verbose_name = "State"
    default_auto_field = "django.db.models.BigAutoField"
