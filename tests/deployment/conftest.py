"""A database as ``docs/deployment/postgresql/`` makes it, with an owner, the site's role and a reader, and processes on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
from django.db import connection

from tests.conftest import end_processes
from tests.deployment.places import FILES, postgres_program
from tests.support.letting_go import everything_let_go
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.warm_start import WarmStarts, cold_start

PASSWORD = "for a test"


class Production:
    """The database and its three roles; names are this process's own, as roles belong to the whole server."""

    def __init__(self, host: str, port: int, suffix: str = "") -> None:
        self.host, self.port = host, port
        self.name = f"replsite_{os.getpid()}{suffix}"
        self.started: list[subprocess.Popen[str]] = []
        self.warm = WarmStarts()
        self.load: Callable[[str], None]
        """Runs SQL in this database as the superuser."""

    def url(self, role: str = "replsite") -> str:
        return f"postgres://{self._own(role)}:{quote(PASSWORD)}@{self.host}:{self.port}/{self.name}"

    def environment(self, role: str = "replsite", **more: str) -> dict[str, str]:
        """Of a process on this database."""
        return {**os.environ, "DATABASE_URL": self.url(role), **more}

    @contextmanager
    def session(self, role: str = "replsite") -> Iterator[Any]:
        """A cursor of a connection of its own, in autocommit mode."""
        where = {"host": self.host, "port": self.port, "dbname": self.name}
        with closing(psycopg2.connect(user=self._own(role), password=PASSWORD, **where)) as opened:
            opened.autocommit = True
            yield opened.cursor()

    def sql(self, file: str) -> str:
        """A file of the page with this process's names."""
        text = (FILES / "postgresql" / file).read_text()
        return text.replace("replsite", self.name)

    def manage(
        self, *arguments: str, role: str = "replsite", folder: Path = PROJECT, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self._start(arguments, self.environment(role, **env), folder, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=4 * DEADLINE_SECONDS)
        finally:
            end_processes([process])
        done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def start(self, *arguments: str, folder: Path = PROJECT, **env: str) -> subprocess.Popen[str]:
        """Start a process; ended with the test at the latest."""
        process = self._start(arguments, self.environment(**env), folder)
        self.started.append(process)
        return process

    def stop(self) -> None:
        """End all processes."""
        end_processes(reversed(self.started))
        self.started.clear()

    def _start(
        self, arguments: tuple[str, ...], environment: dict[str, str], folder: Path, **more: Any
    ) -> subprocess.Popen[str]:
        """Forked where a process with this environment was started before; code of other folders starts anew."""
        more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **more}
        if folder == PROJECT:
            return self.warm.popen(arguments, environment, **more)
        return cold_start(arguments, environment, cwd=folder, **more)

    def _own(self, role: str) -> str:
        return role.replace("replsite", self.name)


@contextmanager
def made_by_the_page(where: dict[str, Any], suffix: str = "", code: Path | None = PROJECT) -> Iterator[Production]:
    """Roles and database by the page's files, tables by migrations of that code as the owner; none without code."""
    made = Production(where["HOST"], where["PORT"], suffix)
    superuser = {
        **os.environ, "PGHOST": str(where["HOST"]), "PGPORT": str(where["PORT"]), "PGUSER": where["USER"],
        "PGPASSWORD": where["PASSWORD"],
    }  # fmt: skip

    def as_superuser(sql: str, name: str = "postgres") -> None:
        psql = [postgres_program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", name, "-f", "-"]
        subprocess.run(psql, env=superuser, input=sql, text=True, check=True, stdout=subprocess.DEVNULL)

    made.load = lambda sql: as_superuser(sql, made.name)

    roles = [made.name, f"{made.name}_owner", f"{made.name}_reader"]
    try:
        as_superuser(made.sql("roles.sql") + "".join(f"ALTER ROLE {role} PASSWORD '{PASSWORD}';\n" for role in roles))
        if code is not None:
            made.manage("migrate", "-v", "0", role="replsite_owner", folder=code)
        yield made
    finally:
        try:
            end_processes(reversed(made.started))
        finally:
            made.warm.close()
            as_superuser(
                f"DROP DATABASE IF EXISTS {made.name} WITH (FORCE);\nDROP ROLE IF EXISTS {', '.join(roles)};\n"
            )


@pytest.fixture(scope="session")
def server(django_db_setup: None, django_db_blocker: Any) -> dict[str, Any]:
    """Where the session's PostgreSQL is, and its superuser."""
    with django_db_blocker.unblock():
        connection.ensure_connection()
        where = dict(connection.settings_dict)
        connection.close()
    return where


@pytest.fixture(scope="session")
def production(server: dict[str, Any]) -> Iterator[Production]:
    """Made by the files of the page: roles, tables by migrations of the owner, grants of the reader."""
    with made_by_the_page(server) as made:
        with made.session("replsite_owner") as cursor:
            cursor.execute(made.sql("reader.sql"))
        yield made


@pytest.fixture(autouse=True)
def _nothing_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    with everything_let_go(request):
        yield


@pytest.fixture
def site(production: Production) -> Iterator[Production]:
    """The production database; processes that the test starts on it end with it."""
    used = copy(production)
    used.started = []
    yield used
    end_processes(reversed(used.started))
