"""The shared fixtures do what they promise."""

from __future__ import annotations

import gc
import os
import subprocess

from tests.support import session
from tests.support.distribution import FilesAndFolders
from tests.support.left_open import MOST_LEFT_OPEN, LeftOpen


def test_a_file_of_a_process_that_is_about_to_end_is_not_left_behind(tmp_path, monkeypatch):
    """The process is nobody's child any more: its file has to be waited for."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(session, "left_processes", list)  # those of other tests
    held = tmp_path / "held"
    held.touch()
    subprocess.run(["sh", "-c", f"(sleep 0.7; rm {held}) >/dev/null 2>&1 &"], check=True)
    assert session.left_files() == ["held"]
    assert session.left_behind() == ([], [])
    held.touch()
    assert session.left_behind(0.2) == ([], ["held"])


def test_descriptors_that_a_module_leaves_open_are_told_with_the_test():
    gc.collect()  # what earlier tests left open is closed now, and not between the two counts
    watching = LeftOpen()
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(MOST_LEFT_OPEN + 1)]
    try:
        assert watching.after_test("test_that_opens", is_last_of_module=False) == ""
        assert watching.after_test("test_another", is_last_of_module=False) == ""
        said = watching.after_test("test_the_last", is_last_of_module=True)
        assert (
            f"left {MOST_LEFT_OPEN + 1} descriptors open, most of them after test_that_opens (+{MOST_LEFT_OPEN + 1})"
            in said
        )
        assert os.devnull in said and "test_another" not in said
        assert watching.after_test("test_of_the_next_module", is_last_of_module=True) == "", "each module is told once"
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_of_a_parallel_run_the_tests_on_spark_are_one_unit_and_others_stay_with_their_file():
    split = FilesAndFolders.__new__(FilesAndFolders)._split_scope
    assert split("tests/pipeline/test_export.py::test_a") == split("tests/pipeline/test_live.py::test_b[1]")
    assert split("tests/integration/events/test_feeds.py::test_a[b::c]") == "tests/integration/events/test_feeds.py"
