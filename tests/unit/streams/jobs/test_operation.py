"""Operations are found by import when they are first asked for: all of them, by whoever asks."""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from streams.jobs import operation as declared
from tests.support.waiting import DEADLINE_SECONDS

_number = itertools.count()


@pytest.fixture
def app(tmp_path, monkeypatch):
    """``app(text)``: an app whose package ``operations`` has a module with this text."""

    def made(text: str) -> None:
        name = f"app_of_operations_{next(_number)}"
        folder = tmp_path / name / "operations"
        folder.mkdir(parents=True)
        for path in (folder.parent / "__init__.py", folder / "__init__.py"):
            path.touch()
        (folder / "dig.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        config = SimpleNamespace(name=name, path=str(folder.parent))
        monkeypatch.setattr(declared.apps, "get_app_configs", lambda: [config])
        monkeypatch.setattr(declared, "_operations", {})

    return made


DIG = """
from streams.jobs.operation import Operation, operation

@operation
class Dig(Operation):
    name, help = "dig", "Dig."
"""


def test_a_module_of_an_app_is_found(app):
    app(DIG)
    assert list(declared.operations()) == ["dig"] and declared.find_operation("dig").help == "Dig."


def test_who_asks_meanwhile_waits_until_all_are_there(app):
    app("import time\ntime.sleep(0.3)\n" + DIG)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(lambda: list(declared.operations())) for _ in range(4)]
        assert [one.result(DEADLINE_SECONDS) for one in found] == [["dig"]] * 4


def test_what_could_not_be_imported_is_tried_again(app, monkeypatch):
    monkeypatch.setattr(sys, "is_installed", False, raising=False)
    app("import sys\nif not sys.is_installed:\n    raise ImportError('not installed')\n" + DIG)
    with pytest.raises(ImportError, match="not installed"):
        declared.operations()
    monkeypatch.setattr(sys, "is_installed", True)
    assert list(declared.operations()) == ["dig"]


def test_a_site_without_the_table_has_none(app, monkeypatch):
    app(DIG)
    monkeypatch.setattr(type(declared.Job._meta), "app_config", None)
    assert declared.operations() == {}
