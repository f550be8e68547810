"""The page about adding a stream, followed to the letter in a project of its own, on a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.own_project import made_schema
from tests.support.session import PROJECT, python_path
from tests.support.waiting import DEADLINE_SECONDS

PAGE = PROJECT / "docs" / "how-to" / "add-a-stream.md"
SETTINGS = """
import os
import dj_database_url
from migrations import MIGRATION_MODULES as REPLSITE_MIGRATIONS

SECRET_KEY = "only for this test"
INSTALLED_APPS = ["streams", "shop"]
MIGRATION_MODULES = {**REPLSITE_MIGRATIONS}
DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
"""

#: Blocks of the part about sync.
SYNC = ("basket", "shop/apps.py", "use_sync")


def blocks() -> dict[str, str]:
    """Blocks of code by the name in their first line."""
    found = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.S)
    return dict(found)


def shown() -> list[str]:
    """What the page says is printed."""
    return re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.S)


class Shop:
    """The reader's project."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REPLSITE_WRITER")},
            "DATABASE_URL": database_url,
            "PYTHONPATH": python_path(folder, PROJECT),
            "DJANGO_SETTINGS_MODULE": "settings",
        }

    def run(self, *arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr if status else done.stdout

    def script(self, code: str) -> str:
        return self.run("-c", f"import django; django.setup()\n{code}")


@contextmanager
def made_shop(folder: Path, database_url: str, *, syncs: bool) -> Iterator[Shop]:
    """The project with its tables, in a schema of its own; with what the part about sync adds."""
    given = blocks()
    settings, models = SETTINGS + given["settings.py"], given["shop/models.py"]
    (folder / "shop" / "migrations").mkdir(parents=True)
    for package in ("shop", "shop/migrations"):
        (folder / package / "__init__.py").touch()
    if syncs:
        settings = settings.replace('["streams", "shop"]', '["streams", "streams.catalog", "state", "events", "shop"]')
        models += given["basket"]
        (folder / "shop" / "apps.py").write_text(given["shop/apps.py"])
    (folder / "settings.py").write_text(settings)
    (folder / "shop" / "models.py").write_text(models)
    made = Shop(folder, f"{database_url}?options=-csearch_path%3Dadd_a_stream")
    with made_schema("add_a_stream"):
        made.run("-m", "django", "makemigrations", "shop")
        made.run("-m", "django", "migrate")
        yield made


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    with made_shop(tmp_path, database_url, syncs=False) as made:
        yield made


def test_the_page_takes_less_than_thirty_lines() -> None:
    own = {name: text for name, text in blocks().items() if name not in ("use", *SYNC)}
    lines = [line for text in own.values() for line in text.splitlines() if line.strip()]
    assert len(lines) < 30, lines


def test_the_page_works(shop: Shop) -> None:
    assert shop.script(blocks()["use"]) == shown()[0]
    assert "orders" in shop.run("-m", "django", "check_streams", "--json")


def test_sql_of_other_programs_appends(shop: Shop) -> None:
    (insert,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.S)
    said = shop.script(
        f"from django.db import connection\nfrom shop.models import Order\n"
        f"with connection.cursor() as cursor:\n    cursor.execute({insert!r})\n    print(cursor.fetchone()[0])\n"
        f"print([(fact.order_id, fact.instance_name) for fact in Order.stream.read().facts])"
    )
    assert said == "2\n[('4712', 'master')]\n"


def test_sync_brings_it(tmp_path: Path, database_url: str) -> None:
    with made_shop(tmp_path, database_url, syncs=True) as shop:
        assert shop.script(blocks()["use_sync"]) == shown()[1]


def test_check_refuses_writers_of_unknown_streams(shop: Shop) -> None:
    with (shop.folder / "settings.py").open("a") as file:
        file.write('REPLSITE_WRITERS = {"ordres": ["web"]}\n')
    assert "streams.E003" in shop.run("-m", "django", "check", status=1)


def test_instance_that_may_not_write_is_refused(shop: Shop) -> None:
    with (shop.folder / "settings.py").open("a") as file:
        file.write('REPLSITE_WRITER = "cron"\n')
    done = shop.run("-c", f"import django; django.setup()\n{blocks()['use']}", status=1)
    assert "WriterNotAllowed" in done and "only web write" in done
