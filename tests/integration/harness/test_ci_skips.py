"""With ``CI=true`` a skipped test is a failure that tells the reason, but for a program that is not here.

An expected failure stays what it is.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.session import PROJECT

SKIPS = """
import pytest

@pytest.mark.skip(reason="of another kind")
def test_marked(): pass

@pytest.mark.skip(reason="no promtool here: Debian's package prometheus")
def test_program(): pass

def test_while_running(): pytest.skip("not here")

@pytest.mark.xfail(reason="known", strict=True)
def test_expected(): raise AssertionError
"""


@pytest.mark.parametrize(
    ("ci", "summary"), [("true", "1 failed, 1 skipped, 1 xfailed, 1 error"), ("", "3 skipped, 1 xfailed")]
)
def test_skips_fail_in_ci_only(tmp_path, ci, summary):
    (tmp_path / "test_skips.py").write_text(SKIPS)
    plugin = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", os.devnull]
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_XDIST", "PYTEST_CURRENT"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfs", *plugin, str(tmp_path)],
        cwd=PROJECT, env={**kept, "CI": ci}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert summary in done.stdout, done.stdout + done.stderr
    assert "of another kind" in done.stdout and "tests skipped; the reasons are above" in done.stdout
