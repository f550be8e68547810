"""Registers the app ``streams`` with Django."""

import atexit

from django.apps import AppConfig
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from streams.db import driver  # now, so that a missing driver is refused before models need one


class StreamsConfig(AppConfig):
    """The engine's app. Label and key type are fixed, so that no project's ``makemigrations`` finds changes."""

    name = "streams"
    label = "streams"
    verbose_name = "Streams"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the system checks and two hooks.

        One hook stops background work at an orderly exit. The other one sets keepalives, and what our statements rely on, on
        new database connections.
        """
        from streams import checks, row_checks  # noqa: F401, PLC0415 - importing registers the checks
        from streams.runtime.leaving import stop_background_work  # noqa: PLC0415

        atexit.register(stop_background_work)
        connection_created.connect(_watch_host, dispatch_uid="streams.watch_host")


def _watch_host(connection: BaseDatabaseWrapper, **_: object) -> None:
    # An appending transaction holds locks. Because of the keepalives, PostgreSQL notices if the client's host is lost,
    # and then ends the transaction.
    from streams.conf import stream_settings  # noqa: PLC0415
    from streams.db import testcase  # noqa: PLC0415 - only tests of users need it

    if testcase.is_test_process():
        from streams import testing  # noqa: PLC0415 - only tests need it

        testing.prepare(connection)
    if connection.vendor == "postgresql" and connection.alias == stream_settings().database:
        driver.prepare_session(connection)
