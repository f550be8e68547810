"""The tutorial, followed to the letter in a project of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "tutorial" / "first-stream.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> dict[str, str]:
    """The tutorial's project, and the environment to run it in; its tables are in a schema of their own."""
    (tmp_path / "shop" / "migrations").mkdir(parents=True)
    for folder in ("shop", "shop/migrations"):
        (tmp_path / folder / "__init__.py").touch()
    settings, models, *_ = blocks()
    (tmp_path / "settings.py").write_text(settings)
    (tmp_path / "shop" / "models.py").write_text(models)
    return {
        **os.environ,
        "DATABASE_URL": f"{database_url}?options=-csearch_path%3Dtutorial",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{PROJECT}",
        "DJANGO_SETTINGS_MODULE": "settings",
    }


def run(environment: dict[str, str], folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tutorial_works(site: dict[str, str], tmp_path: Path) -> None:
    from django.db import connection

    from streams.testing import forget_writers

    forget_writers()  # locks are the database's, and an earlier test may have written as "master" here
    _, _, migration, append, read = blocks()
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tutorial")
    try:
        run(site, tmp_path, "-m", "django", "makemigrations", "shop")
        (tmp_path / "shop" / "migrations" / "0002_sequence.py").write_text(migration)
        run(site, tmp_path, "-m", "django", "migrate")
        script = (
            f"import django; django.setup()\n{append}\nfrom streams.writers import retire_all; retire_all()\n{read}"
        )
        output = run(site, tmp_path, "-c", script)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA tutorial CASCADE")
    shown = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.S)
    assert shown is not None
    assert output.replace("'", '"') == shown.group(1)
