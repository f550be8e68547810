"""What an executor tells of itself: packages that it lacks, and whether it reaches the database."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from pipeline.spark import cluster_check
from pipeline.spark.cluster_check import find_missing
from tests.support.session import PROJECT


def test_nothing_is_missing_here():
    assert find_missing("") == {}


def test_the_tasks_need_neither_django_nor_the_site():
    """An executor has the code of tasks, and no settings."""
    loop = f"for name in {cluster_check.TASK_MODULES!r}: importlib.import_module(name)"
    code = f"import sys, importlib\n{loop}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.split(".")[0] in ("django", "replsite")]


def test_a_module_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setattr(cluster_check, "TASK_MODULES", ("no_such_package.tasks",))
    assert find_missing("") == {"no_such_package": "No module named 'no_such_package'"}


def test_a_database_that_cannot_be_reached_is_told_in_one_line():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        missing = find_missing(f"host=127.0.0.1 port={probe.getsockname()[1]} dbname=x user=u password=hidden")
    (told,) = missing.values()
    assert "\n" not in told and "refused" in told
    assert "hidden" not in told


@pytest.mark.parametrize(
    ("trace", "gist"),
    [
        ("Aborted\nTraceback (most recent)\n  File \"x.py\"\nModuleNotFoundError: No module named 'pipeline'\n\tat a.b",
         "ModuleNotFoundError: No module named 'pipeline'"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "[PYTHON_VERSION_MISMATCH] Python in worker "
         "has different version: 3.9"),
        ("", "Spark gave no reason"),
    ],
)  # fmt: skip
def test_the_gist_of_a_remote_trace_is_the_line_that_tells_why(trace, gist):
    assert cluster_check._gist(trace) == gist
