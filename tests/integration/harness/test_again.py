"""A test with processes that failed runs once more, alone, and is named if it passes; what could hide a defect does not."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from tests.support import again
from tests.support.session import PROJECT

TESTS = """
import subprocess, sys
from pathlib import Path
import pytest

def first_time(name):
    (seen := Path(__file__).with_name(name)).touch(exist_ok=(had := seen.exists()))
    return not had

def test_without_processes():
    assert not {without} or not first_time("without")

def test_with_processes():
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert not {once} or not first_time("once"), "it raced with another"

@pytest.mark.no_rerun
def test_on_data():
    assert not {data} or not first_time("data")

def test_always():
    assert not {always}
"""
NOTHING = {"without": False, "once": False, "data": False, "always": False}


def run(folder: Path, **fails: bool) -> subprocess.CompletedProcess[str]:
    """Test file in which these tests fail, all but one of them for the first time only."""
    name = "test_races.py"
    text = TESTS.format(**NOTHING | fails)
    if fails.get("without"):  # before the module has started a process
        text = text.replace("def test_with_processes", "def not_now")
    (folder / name).write_text(text)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_XDIST", "PYTEST_CURRENT"))}
    options = f"-p tests.conftest -p no:cacheprovider --rootdir {folder} -c {os.devnull}"
    return subprocess.run(
        [sys.executable, "-m", "tests.support.again", str(folder / name)],
        cwd=PROJECT, env={**kept, "PYTEST_ADDOPTS": options}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_failure_with_processes_that_passes_alone_is_named_with_its_text(tmp_path):
    done = run(tmp_path, once=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FLAKY (failed beside others, passed alone): test_races.py::test_with_processes" in done.stdout
    assert done.stdout.count("it raced with another") >= 2, "where it failed, and in the verdict"


@pytest.mark.parametrize(
    "fails",
    [
        {"without": True},
        {"data": True},
        pytest.param({"once": True, "data": True}, marks=pytest.mark.scenario),
        pytest.param({"always": True}, marks=pytest.mark.scenario),
    ],
)
def test_what_could_hide_a_defect_stays_a_failure(tmp_path, fails):
    done = run(tmp_path, **fails)
    assert done.returncode == 1, done.stdout
    assert "FLAKY" not in done.stdout


def test_a_ledger_is_short_complete_and_not_old():
    entry = '[[test]]\nid = "a"\nfirst_seen = 2026-01-01\ncause = "b"\n'
    assert again.check_ledger(entry, date(2026, 1, 15)) == []
    assert "more than 14 days" in again.check_ledger(entry, date(2026, 1, 16))[0]
    assert again.check_ledger(entry * 11, date(2026, 1, 1)) == ["11 entries, 10 at most"]
    assert again.check_ledger('[[test]]\nid = "a"\n', date(2026, 1, 1)) == ["a: without cause, first_seen"]


def test_modules_whose_verdict_is_on_data_are_there():
    assert [module for module in again.VERDICTS_ON_DATA if not (PROJECT / module).is_file()] == []
