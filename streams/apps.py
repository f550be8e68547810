"""Registers the app ``streams`` with Django."""

import atexit

from django.apps import AppConfig
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created


class StreamsConfig(AppConfig):
    """The engine's app. Label and key type are fixed, so that no project's ``makemigrations`` finds changes."""

    name = "streams"
    label = "streams"
    verbose_name = "Streams"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the system checks, the subjects of ``purge`` and ``resync``, and two hooks.

        One hook retires this process's writers at an orderly exit. Otherwise readers would wait for the writers of a
        process that is gone. The other hook sets keepalives on new database connections.
        """
        from streams import checks  # noqa: F401, PLC0415 - importing registers the checks
        from streams.homeserver import federation_queue, typing  # noqa: F401, PLC0415 - registers their reset hooks
        from streams.maintenance import trim_command  # noqa: PLC0415 - models can be imported only from here on
        from streams.writing import process  # noqa: PLC0415 - models can be imported only from here on

        trim_command.register_subjects()
        atexit.register(process.retire_all)
        connection_created.connect(_watch_host, dispatch_uid="streams.watch_host")


def _watch_host(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Sets keepalives for the server side of Django's connections to the streams' database.

    An appending transaction holds locks. PostgreSQL must notice when the host of its client is lost.
    """
    from streams.conf import stream_settings  # noqa: PLC0415
    from streams.db import driver  # noqa: PLC0415 - the driver is not needed to load the app

    if connection.vendor == "postgresql" and connection.alias == stream_settings().database:
        with connection.cursor() as cursor:
            cursor.execute(driver.SERVER_KEEPALIVES)
