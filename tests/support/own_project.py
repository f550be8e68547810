"""A project of another team with a stream of its own, in a schema of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from django.db import connection

from tests.support.session import PROJECT, python_path
from tests.support.waiting import DEADLINE_SECONDS

__all__ = ["MAKE_TABLES", "OwnProject", "as_it_was", "made_for_module", "made_project", "made_schema", "tables_of"]

SETTINGS = """
import os
import dj_database_url
from migrations import MIGRATION_MODULES  # noqa: F401

SECRET_KEY = "only for this test"
INSTALLED_APPS = ["streams", "shop"]
DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
"""
MODELS = """
from django.db import models
from streams import Fact, stream


@stream("orders")
class Order(Fact):
    order_id = models.TextField()
    status = models.TextField()
"""
#: Both commands in one process, because the start of an interpreter takes more than they do.
MAKE_TABLES = """
import importlib
import django
from django.core.management import call_command

django.setup()
call_command("makemigrations", "shop")
importlib.invalidate_caches()
call_command("migrate", verbosity=0)
"""


class OwnProject:
    """Its folder, its environment, and its commands."""

    def __init__(self, folder: Path, database_url: str, schema: str) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REPLSITE_WRITER")},
            "DATABASE_URL": f"{database_url}?options=-csearch_path%3D{schema}",
            "PYTHONPATH": python_path(folder, PROJECT),
            "DJANGO_SETTINGS_MODULE": "settings",
        }

    def run(self, *arguments: str, status: int = 0) -> str:
        """Output of a command of Django's; errors too, where it is to fail."""
        return self.python("-m", "django", *arguments, status=status)

    def python(self, *arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + (done.stderr if status else "")

    def script(self, code: str) -> str:
        return self.run("shell", "-v", "0", "-c", code)

    def start(self, *arguments: str, module: str = "django") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip


@contextmanager
def made_project(folder: Path, database_url: str, schema: str, settings: str = "") -> Iterator[OwnProject]:
    """The project with its tables; ``settings`` are lines at the end of its own."""
    (folder / "shop" / "migrations").mkdir(parents=True)
    for package in ("shop", "shop/migrations"):
        (folder / package / "__init__.py").touch()
    (folder / "settings.py").write_text(SETTINGS + settings)
    (folder / "shop" / "models.py").write_text(MODELS)
    made = OwnProject(folder, database_url, schema)
    with made_schema(schema):
        made.python("-c", MAKE_TABLES)
        yield made


@contextmanager
def made_for_module(blocker: Any, make: AbstractContextManager[OwnProject]) -> Iterator[OwnProject]:
    """A project that the tests of a module share, each through ``as_it_was``."""
    with blocker.unblock():
        made = make.__enter__()
    yield made
    with blocker.unblock():
        make.__exit__(None, None, None)


@contextmanager
def as_it_was(project: OwnProject) -> Iterator[OwnProject]:
    """What the test writes in these files is taken back."""
    kept = {path: path.read_text() for path in project.folder.glob("*.py")}
    yield project
    for path, text in kept.items():
        path.write_text(text)


@contextmanager
def made_schema(name: str) -> Iterator[None]:
    """An empty schema of the test's database."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {name}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA {name} CASCADE")


def tables_of(schema: str) -> set[str]:
    """Names of the schema's tables, indexes and sequences."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace", [schema])
        return {name for (name,) in cursor.fetchall()}
