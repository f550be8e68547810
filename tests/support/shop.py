"""The project of a user: the tutorial's shop in a folder of its own, with the files of a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.own_project import MAKE_TABLES, made_schema
from tests.support.session import PROJECT, python_path
from tests.support.waiting import DEADLINE_SECONDS

__all__ = ["Shop", "migrated_shop"]

TUTORIAL = (PROJECT / "docs" / "tutorial" / "first-stream.md").read_text()
#: What ``startproject`` would have written, as far as the shop needs it, and the tests' server in place of one of its own.
BEFORE = """
from pathlib import Path
import dj_database_url
from migrations import MIGRATION_MODULES
BASE_DIR = Path(__file__).parent
SECRET_KEY = "only for tests"
INSTALLED_APPS = []
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
AFTER = """
DATABASES = {"default": dj_database_url.config()}
"""
MANAGE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


class Shop:
    """The reader's project."""

    def __init__(self, folder: Path, database_url: str, given: Mapping[str, str]) -> None:
        self.folder = folder
        settings, models, *_ = re.findall(r"```python\n(.*?)```", TUTORIAL, re.S)
        files = {"settings.py": BEFORE + settings + AFTER, "shop/models.py": models, "manage.py": MANAGE}
        files |= {"shop/__init__.py": "", "shop/migrations/__init__.py": ""}
        files |= given
        files["pytest.ini"] = "[pytest]\nDJANGO_SETTINGS_MODULE = settings\npython_files = tests.py test_*.py\n"
        files["pytest.ini"] += "asyncio_default_fixture_loop_scope = function\n"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DJANGO", "REPLSITE"))
        }
        self.environment = own | {
            "DATABASE_URL": database_url,
            "PYTHONPATH": python_path(folder, PROJECT),
            "PYTEST_ADDOPTS": f"-p streams.pytest_plugin -p no:cacheprovider --basetemp={folder}/tmp",
        }

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=4 * DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip


@contextmanager
def migrated_shop(
    folder: Path, database_url: str, schema: str, given: Mapping[str, str], settings: str = ""
) -> Iterator[Shop]:
    """The shop with its tables, in a schema of its own; ``settings`` are lines at the end of its own."""
    made = Shop(folder, f"{database_url}?options=-csearch_path%3D{schema}", given)
    made.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    with (folder / "settings.py").open("a") as file:
        file.write(settings)
    with made_schema(schema):
        made.run("-c", MAKE_TABLES)
        yield made
