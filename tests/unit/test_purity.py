"""What `pyproject.toml` calls pure needs no Django, no driver, no network library: it is imported with all of that blocked."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.session import PROJECT

IMPORT_BLOCKED = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")

BLOCKED, modules = set(sys.argv[1].split(",")), sys.argv[2].split(",")
sys.meta_path.insert(0, Blocker())
failed = []
for module in modules:
    try:
        importlib.import_module(module)
    except ImportError as error:
        failed.append(f"{module}: {error}")
sys.exit("\\n".join(failed))
"""
CONTRACT = next(
    contract
    for contract in tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if contract["name"] == "what is pure touches no edge"
)
THIRD_PARTY = [name for name in CONTRACT["forbidden_modules"] if name not in sys.stdlib_module_names]


def name_of(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = [
    name_of(path)
    for room in ("streams", "state", "events", "pipeline", "replsite")
    for path in (PROJECT / room).rglob("*.py")
]
MODULES = sorted(name for name in NAMES if any(fnmatch(name, pattern) for pattern in CONTRACT["source_modules"]))


def import_blocked(modules: list[str], blocked: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", IMPORT_BLOCKED, ",".join(blocked), ",".join(modules)]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip()


def test_pure_modules_import_with_django_and_the_edges_blocked():
    assert import_blocked(MODULES, THIRD_PARTY) == ""


def test_the_blocker_blocks():
    assert "streams.models: django" in import_blocked(["streams.models"], ["django"])


@pytest.mark.parametrize("pattern", CONTRACT["source_modules"])
def test_every_pattern_names_something(pattern):
    assert [name for name in MODULES if fnmatch(name, pattern)]


@pytest.mark.parametrize("name", MODULES)
def test_what_says_that_it_has_an_edge_is_not_among_them(name):
    path = PROJECT / f"{name.replace('.', '/')}.py"
    opening = (path if path.exists() else PROJECT / name.replace(".", "/") / "__init__.py").read_text()[:1_000]
    assert "(no Django" not in opening and "(driver" not in opening
