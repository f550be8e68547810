"""Pure modules need no Django, no database driver, no network library: they are imported with all of that blocked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.scripts import load_script
from tests.support.session import PROJECT

pure = load_script("pure_modules")

THIRD_PARTY = [name for name in pure.FORBIDDEN if name not in sys.stdlib_module_names]
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


def import_blocked(modules: list[str], blocked: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", IMPORT_BLOCKED, ",".join(blocked), ",".join(modules)]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip()


@pytest.fixture(scope="module")
def pure_modules() -> list[str]:
    return pure.pure_modules()


def test_pure_modules_import_with_django_and_the_edges_blocked(pure_modules):
    assert import_blocked(pure_modules, THIRD_PARTY) == ""


def test_the_blocker_blocks():
    assert "streams.models: django" in import_blocked(["streams.models"], ["django"])


def test_every_room_of_rules_has_pure_modules(pure_modules):
    assert {name.partition(".")[0] for name in pure_modules} >= {"streams", "state", "events"}


def test_lists_in_pyproject_are_up_to_date(pure_modules):
    text = (PROJECT / "pyproject.toml").read_text()
    assert pure.replaced(text, pure_modules) == text, "run script/pure_modules.py"


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [("A rule (pure).", ["streams.rule"]), ("An edge (pure but for the clock).", []), ("", [])],
)
def test_a_module_is_pure_when_its_docstring_says_so(tmp_path, docstring, expected):
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "rule.py").write_text(f'"""{docstring}"""\n')
    assert pure.pure_modules(tmp_path) == expected


def test_rewriting_twice_changes_nothing_more():
    once = pure.replaced("[tool.other]\n", ["streams.core.tokens"])
    assert pure.replaced(once, ["streams.core.tokens"]) == once
