"""Adapts Django's PostgreSQL backend to a server that is started when it is first needed.

Host, port, user and password are filled in at each new connection. A database that does not exist yet is created.
Everything else is Django's, with the metrics of django-prometheus if the site has installed this app.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql.client import DatabaseClient as PostgresClient
from django.db.backends.postgresql.psycopg_any import errors, sql
from django.db.utils import OperationalError

from replsite.conf import site_settings
from replsite.postgres.errors import EmbeddedPostgresError

try:
    from replsite.postgres.server import EmbeddedServer, find_programs
except ModuleNotFoundError as missing:  # Django would hide it behind the names of its own backends
    raise ImproperlyConfigured(
        f"The embedded PostgreSQL (replsite.postgres.backend) needs an extra: pip install 'replsite[embedded]' ({missing})."
    ) from missing

if "django_prometheus" in settings.INSTALLED_APPS:
    from django_prometheus.db.backends.postgresql.base import DatabaseWrapper as PostgresWrapper
else:
    from django.db.backends.postgresql.base import DatabaseWrapper as PostgresWrapper


def embedded_server() -> EmbeddedServer:
    """Returns the embedded server that Django's settings describe."""
    site = site_settings()
    if not getattr(settings, "REPLSITE_DATA_DIR", ""):
        raise ImproperlyConfigured(
            "The embedded PostgreSQL (replsite.postgres.backend) needs a folder for its data. Set, for instance: "
            'REPLSITE_DATA_DIR = BASE_DIR / "data"'
        )
    return EmbeddedServer(
        data_dir=Path(site.data_dir),
        programs=Path(site.postgres_bin) if site.postgres_bin else None,
        fsync=site.postgres_fsync,
    )


class DatabaseClient(PostgresClient):
    """The client of ``manage.py dbshell``. It starts the server first.

    It runs the ``psql`` in the folder of the server's programs, or else the ``psql`` that Django finds.
    """

    connection: DatabaseWrapper

    def runshell(self, parameters: Iterable[str]) -> None:
        """Runs the shell as Django's own client does, after it has started the server."""
        self.connection.ensure_connection()  # starts the server, and creates the database if it is missing
        self.connection.close()
        super().runshell(parameters)

    @classmethod
    def settings_to_cmd_args_env(
        cls, settings_dict: dict[str, Any], parameters: Iterable[str]
    ) -> tuple[list[str], dict[str, str] | None]:
        """Returns Django's command line and environment, with the path of ``psql`` in the folder of the server's programs."""
        arguments, environment = super().settings_to_cmd_args_env(settings_dict, parameters)
        psql = find_programs(embedded_server().programs) / "psql"
        return ([str(psql), *arguments[1:]] if psql.is_file() else arguments), environment


class DatabaseWrapper(PostgresWrapper):
    """A connection to the embedded server."""

    client_class = DatabaseClient

    def find_server(self) -> None:
        """Starts the server unless it runs, and writes its address into this connection's settings.

        Raises OperationalError if the server cannot be used.
        """
        try:
            server = embedded_server().ensure_running()
        except EmbeddedPostgresError as error:
            raise OperationalError(str(error)) from error
        self.settings_dict.update({name.upper(): str(value) for name, value in server.items()})

    def get_connection_params(self) -> dict[str, Any]:
        """Returns parameters for the driver. Blocks while the server starts."""
        self.find_server()
        return dict(super().get_connection_params())

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Connects. If that fails, creates the database if it is missing, and connects again."""
        try:
            return super().get_new_connection(conn_params)
        except self.Database.OperationalError:
            if not self.settings_dict["NAME"]:
                raise
            self._create_database_if_missing(conn_params)
        return super().get_new_connection(conn_params)

    def _create_database_if_missing(self, conn_params: dict[str, Any]) -> None:
        # The catalogue is asked: the connection error does not say clearly whether the database is missing.
        name = self.settings_dict["NAME"]
        where = {key: conn_params[key] for key in ("host", "port", "user", "password")}
        with closing(self.Database.connect(**where, dbname="postgres")) as server:
            server.autocommit = True
            with server.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name])
                if cursor.fetchone() is None:
                    with suppress(errors.DuplicateDatabase, errors.UniqueViolation):  # another process was first
                        cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
