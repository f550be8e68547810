"""Registers the room ``streams`` with Django."""

import atexit

from django.apps import AppConfig


class StreamsConfig(AppConfig):
    """The engine: fixed label and key type, so that installing it elsewhere invents no migrations."""

    name = "streams"
    label = "streams"
    verbose_name = "Streams"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks; leave all streams at an orderly exit, so that nobody waits for a process that is gone."""
        from streams import checks, trim_commands, writers  # noqa: F401, PLC0415 - importing registers the checks
        from streams.catalog import queues, typing_users  # noqa: F401, PLC0415 - what happens when they begin anew

        trim_commands.register_subjects()
        atexit.register(writers.retire_all)
