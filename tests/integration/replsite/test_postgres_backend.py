"""Django on the embedded server, and the same code on a server that ``DATABASE_URL`` names."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.db.utils import load_backend

from replsite.postgres.backend.base import DatabaseWrapper, embedded_server
from replsite.postgres.errors import StartFailed
from replsite.postgres.server import EmbeddedServer
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS

DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
Manage = Callable[..., "subprocess.CompletedProcess[str]"]


def manage_in(data_dir: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT, env={**kept, "REPLSITE_DATA_DIR": str(data_dir), **environment},
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """A data directory whose server this process uses, so that commands find it running."""
    with tempfile.TemporaryDirectory(prefix="backend-") as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "data"
        server = EmbeddedServer(folder, fsync=False)
        server.ensure_running()
        yield folder
        server.stop()


@pytest.fixture
def manage(data_dir: Path) -> Manage:
    return lambda *arguments, **environment: manage_in(data_dir, *arguments, **environment)


def test_missing_database_is_created_at_the_first_connection(manage):
    done = manage("dbshell", "--", "-Atc", "SELECT current_database()")
    assert done.stdout == "replsite\n", done.stderr


def test_dbshell_uses_the_programs_that_came_with_the_server(manage):
    done = manage("dbshell", "--", "--version", PATH=str(Path(sys.executable).parent))
    assert "PostgreSQL" in done.stdout, done.stderr


@pytest.mark.scenario
def test_migrations_run_on_an_empty_data_directory(manage):
    assert manage("migrate", "-v", "0").returncode == 0
    assert manage("migrate", "--check").returncode == 0


@pytest.mark.scenario
def test_two_that_migrate_an_empty_database_at_once_come_one_after_the_other(data_dir):
    environment = {
        **os.environ,
        "REPLSITE_DATA_DIR": str(data_dir),
        "DJANGO_SETTINGS_MODULE": "tests.support.slow_migrations",
    }
    environment["SLOW_DATABASE"] = "migrated_twice"
    environment.pop("DATABASE_URL", None)
    command = [sys.executable, "manage.py", "migrate"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, cwd=PROJECT, env=environment, **pipes) for _ in "ab"]
    said = [process.communicate(timeout=4 * DEADLINE_SECONDS) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert [err for _, err in said] == ["", ""]
    (waited,) = [out for out, _ in said if "Another migrate is at work on this database (database session " in out]
    assert "No migrations to apply." in waited


def served_once(environment: dict[str, str]) -> tuple[str, str, int]:
    """Starts ``serve``, ends it as soon as it accepts, and returns what it said and its exit status."""
    command = [sys.executable, "manage.py", "serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=PROJECT, env=environment, **pipes) as server:
        first = server.stdout.readline()
        server.terminate()
        return first, server.communicate(timeout=DEADLINE_SECONDS)[1], server.returncode


def test_serve_makes_the_tables_of_an_empty_embedded_database(data_dir):
    environment = {
        **os.environ,
        "REPLSITE_DATA_DIR": str(data_dir),
        "DJANGO_SETTINGS_MODULE": "tests.support.slow_migrations",
        "SLOW_DATABASE": "served_at_once",
    }
    environment.pop("DATABASE_URL", None)
    ready, told, _ = served_once(environment)
    assert ready.startswith("ready http=")
    assert told.splitlines()[0] == "The embedded database is empty: making its tables."
    ready, told, _ = served_once(environment)
    assert ready.startswith("ready http=")
    assert "making its tables" not in told


def test_serve_leaves_the_tables_of_any_other_server_to_its_operator(tmp_path, debian_url):
    environment = {**os.environ, "REPLSITE_DATA_DIR": str(tmp_path), "DATABASE_URL": debian_url}
    ready, told, status = served_once(environment)
    assert (ready, status) == ("", 1)
    assert "has not got the tables: run `manage.py migrate` first." in told


def test_first_connections_at_once_create_one_database(data_dir):
    script = """if True:
        import django; django.setup()
        from django.db import connection
        connection.settings_dict["NAME"] = "both"
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_database()")
            print(cursor.fetchone()[0])
    """
    environment = {**os.environ, "REPLSITE_DATA_DIR": str(data_dir), "DJANGO_SETTINGS_MODULE": "replsite.settings"}
    environment.pop("DATABASE_URL", None)
    command = [sys.executable, "-c", script]
    both = [subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    assert [process.communicate()[0] for process in both] == ["both\n", "both\n"]


def test_server_that_cannot_start_is_a_database_error(monkeypatch):
    def fail(_: object) -> None:
        raise StartFailed("no")

    monkeypatch.setattr(EmbeddedServer, "ensure_running", fail)
    wrapper = DatabaseWrapper({"NAME": "x", "OPTIONS": {}, "TIME_ZONE": None}, "other")
    with pytest.raises((DatabaseError, ImproperlyConfigured), match="no"):
        wrapper.find_server()


def test_unreachable_server_is_one_line_and_status_1(tmp_path, free_port):
    done = manage_in(tmp_path, "migrate", DATABASE_URL=f"postgres://a:b@127.0.0.1:{free_port}/x")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert str(free_port) in done.stderr


@pytest.fixture(scope="module")
def debian_url() -> Iterator[str]:
    """``DATABASE_URL`` of a server of Debian's programs."""
    if not DEBIAN:
        pytest.skip("no PostgreSQL of the machine here: Debian's package postgresql")
    with tempfile.TemporaryDirectory(prefix="debian-") as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "data"
        server = EmbeddedServer(folder, DEBIAN[0].parent, fsync=False)
        yield "postgres://{user}:{password}@{host}:{port}/postgres".format(**server.ensure_running())
        server.stop()


@pytest.mark.scenario
def test_the_same_code_runs_on_the_server_of_database_url(tmp_path, debian_url):
    for command in (["migrate", "-v", "0"], ["append", "caches", "--count", "5"], ["check_streams"]):
        done = manage_in(tmp_path, *command, DATABASE_URL=debian_url)
        assert done.returncode == 0, done.stdout + done.stderr
    major = DEBIAN[0].parts[-3]
    done = manage_in(tmp_path, "dbshell", "--", "-Atc", "SHOW server_version", DATABASE_URL=debian_url)
    assert not (tmp_path / "postgres").exists(), "no embedded server was started beside it"
    assert done.returncode != 0 or done.stdout.startswith(major)


def test_without_a_folder_the_error_says_what_to_set(settings):
    """It was an AttributeError with a traceback, from the first command of a new project."""
    del settings.REPLSITE_DATA_DIR
    with pytest.raises(ImproperlyConfigured, match="Set, for instance: REPLSITE_DATA_DIR"):
        embedded_server()


def test_without_the_extra_the_error_names_it(monkeypatch):
    """Django would say that the backend is not available, and name its own ones."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    for module in ("replsite.postgres.server", "replsite.postgres.backend.base"):
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'replsite\[embedded\]'"):
        load_backend("replsite.postgres.backend")
