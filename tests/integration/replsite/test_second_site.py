"""The apps, installed from a wheel, in another Django project that reads them with a role of its own.

The project's settings, router, grants and reading code are the blocks of
``docs/how-to/use-the-models-from-another-service.md``; its own database is SQLite, so nothing can come from there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection

from streams.models import StreamPosition
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.session import PROJECT, python_path
from tests.support.stored_rooms import store_room

PAGE = (PROJECT / "docs/how-to/use-the-models-from-another-service.md").read_text()
SETTINGS = """
import os
from pathlib import Path

SECRET_KEY = "second"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).with_name("own.sqlite3")}}
DEFAULT_AUTO_FIELD = os.environ.get("SECOND_AUTO_FIELD", "django.db.models.BigAutoField")
USE_TZ = True
"""


def block(language: str, start: str = "") -> str:
    """The page's block of code in ``language`` that begins with ``start``."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if text.startswith(start)]
    assert len(found) == 1, (language, start)
    return found[0]


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The project's wheel, built without network and unpacked by pip into a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--quiet"]
        build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", f"{name}/wheels", str(PROJECT)]
        subprocess.run([*pip, *build], check=True, stdin=subprocess.DEVNULL)
        (wheel,) = Path(name, "wheels").glob("replsite-*.whl")
        target = Path(name, "site")
        subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)], check=True)
        yield target


class SecondSite:
    """A generated Django project beside the installed apps."""

    def __init__(self, folder: Path, installed: Path, role: str) -> None:
        self.folder, self.installed, self.role = folder, installed, role
        where = connection.settings_dict
        page_settings = (
            block("python", "# settings")
            .replace('"5432"', repr(str(where["PORT"])))
            .replace('"127.0.0.1"', repr(where["HOST"]))
            .replace('"NAME": "replsite"', f'"NAME": {where["NAME"]!r}')
            .replace("history_reader", role)
        )
        (folder / "second_settings.py").write_text(SETTINGS + page_settings)
        (folder / "history_router.py").write_text(block("python", "# history_router.py"))

    def manage(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REPLSITE", "DJANGO"))}
        path = python_path(self.folder, self.installed)
        return subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            cwd=self.folder,
            env={**kept, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "second_settings", **environment},
            capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        return self.manage("shell", "-v", "0", "-c", code)


@pytest.fixture
def second_site(installed: Path, database_url: str) -> Iterator[SecondSite]:
    role = f"history_reader_{os.getpid()}"
    database = urlsplit(database_url).path.lstrip("/")
    grants = block("sql").replace("history_reader", role).replace("DATABASE replsite", f"DATABASE {database}")
    with connection.cursor() as cursor:
        cursor.execute(grants)
    try:
        with tempfile.TemporaryDirectory(prefix="second-") as name:
            yield SecondSite(Path(name), installed, role)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
            cursor.execute(f"GRANT CONNECT ON DATABASE {database} TO PUBLIC")  # as it was, for the roles of later tests


def test_second_site_reads_the_models_with_the_documented_role(second_site):
    StreamPosition.objects.create(stream="events", instance_name="w1", position=42)
    done = second_site.run(block("python", "# read"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["w1 42", "0 0", "0 0"]


def test_second_site_asks_the_usual_questions(second_site):
    made = MadeRoom()
    made.topic("x")
    made.message()
    store_room(made.events)
    StreamPosition.objects.create(stream="events", instance_name="w1", position=42)
    with connection.cursor() as cursor:
        cursor.execute(block("sql-more").replace("history_reader", second_site.role))
    done = second_site.run(block("python", "# ask"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == [
        "events can be read up to 42",
        f"{made.room_id} has 1 members",
        "m.room.message changed [] of 2",
        "m.room.topic changed ['m.room.topic'] of 2",
    ]
    assert "Room.read.writable()" in done.stdout.splitlines()[4]


def test_second_site_joins_who_sees_what(second_site):
    made = MadeRoom()
    made.message()
    last = made.message()
    store_room(made.events)
    with connection.cursor() as cursor:
        cursor.execute(block("sql-join").replace("history_reader", second_site.role))
    done = second_site.run(block("python", "# join"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{last.event_id} whole" and lines[3:] == ["2 messages", f"[{ALICE!r}] see the newest event"]


def test_apps_and_their_migrations_come_from_the_wheel(second_site):
    """And no package ``migrations`` is installed, which would be in the way of others."""
    code = """
import importlib.util, events.models
from django.db.migrations.loader import MigrationLoader
own = sorted({app for app, _ in MigrationLoader(None).disk_migrations} - {"auth", "contenttypes"})
print(events.models.__file__, importlib.util.find_spec("migrations"), *own)
"""
    file, found, *apps = second_site.run(code).stdout.split()
    assert file.startswith(str(second_site.installed)) and found == "None"
    assert apps == ["events", "state", "streams", "streams_catalog"]


@pytest.mark.parametrize("grant", ["streams_streamposition", "events_event", "state_stategroup", "CONNECT"])
def test_every_documented_grant_is_needed(second_site, grant):
    (line,) = [line for line in block("sql").splitlines() if re.search(rf"\b{grant}\b", line)]
    revoke = line.replace("GRANT ", "REVOKE ").replace(" TO ", " FROM ").replace("history_reader", second_site.role)
    database = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(revoke.replace("DATABASE replsite", f"DATABASE {database}"))
        cursor.execute(f"REVOKE CONNECT ON DATABASE {database} FROM PUBLIC")
    assert second_site.run(block("python", "# read")).returncode != 0


@pytest.mark.parametrize(
    "statement",
    [
        "StreamPosition.objects.create(stream='s', instance_name='i', position=1)",
        "StreamPosition.objects.all().delete()",
    ],
)
def test_the_role_cannot_write(second_site, statement):
    done = second_site.run(f"from streams.models import StreamPosition; {statement}")
    assert "permission denied" in done.stderr


def test_the_role_reads_no_other_table(second_site):
    code = "from django.db import connections; connections['replsite'].cursor().execute('SELECT * FROM auth_user')"
    assert "permission denied" in second_site.run(code).stderr


@pytest.mark.parametrize("field", ["django.db.models.AutoField", "django.db.models.BigAutoField"])
def test_no_migrations_are_invented(second_site, field):
    done = second_site.manage("makemigrations", "--check", "--dry-run", SECOND_AUTO_FIELD=field)
    assert done.returncode == 0, done.stdout + done.stderr


def test_system_checks_pass(second_site):
    done = second_site.manage("check", "--fail-level", "WARNING")
    assert done.returncode == 0, done.stderr


def test_the_sites_own_settings_work_from_the_wheel(installed, tmp_path):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), "REPLSITE_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "django", "makemigrations", "--check", "--dry-run", "--settings", "replsite.settings"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "No changes detected" in done.stdout, done.stderr


def test_the_sites_own_tables_are_migrated_without_touching_ours(second_site):
    done = second_site.manage("migrate", "-v", "0")
    assert done.returncode == 0, done.stderr
    code = (
        "from django.db import connection; print([t for t in connection.introspection.table_names() if 'event' in t])"
    )
    assert second_site.run(code).stdout.strip() == "[]"
