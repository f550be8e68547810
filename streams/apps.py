"""Registers the room ``streams`` with Django."""

import atexit

from django.apps import AppConfig
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created


class StreamsConfig(AppConfig):
    """The engine: fixed label and key type, so that installing it elsewhere invents no migrations."""

    name = "streams"
    label = "streams"
    verbose_name = "Streams"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks; leave all streams at an orderly exit, so that nobody waits for a process that is gone."""
        from streams import checks  # noqa: F401, PLC0415 - importing registers the checks
        from streams.homeserver import federation_queue, typing  # noqa: F401, PLC0415 - what happens when they begin anew
        from streams.maintenance import trim_command  # noqa: PLC0415 - importing registers the checks
        from streams.writing import process  # noqa: PLC0415 - importing registers the checks

        trim_command.register_subjects()
        atexit.register(process.retire_all)
        connection_created.connect(_watch_host, dispatch_uid="streams.watch_host")


def _watch_host(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Transactions that append hold locks, too: the server has to notice when the host of one is lost."""
    from streams.conf import stream_settings  # noqa: PLC0415
    from streams.db import driver  # noqa: PLC0415 - the driver is not needed to load the app

    if connection.vendor == "postgresql" and connection.alias == stream_settings().database:
        with connection.cursor() as cursor:
            cursor.execute(driver.SERVER_KEEPALIVES)
