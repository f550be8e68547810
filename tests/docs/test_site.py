"""The documents build as a site, strictly: a link or an anchor that leads nowhere is an error; and it needs no other host."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.session import PROJECT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(PROJECT / "docs", folder / "docs")
    shutil.copy(PROJECT / "zensical.toml", folder)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "docs"


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(PROJECT / "docs").with_suffix(".html") for path in (PROJECT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]* src="(https?:)?//|<link[^>]* rel="stylesheet"[^>]* href="(https?:)?//'
    )
    assert [path.name for path in site.rglob("*.html") if loaded.search(path.read_text())] == []


def test_the_page_can_be_searched(site: Path) -> None:
    assert "linear position" in (site / "search.json").read_text()
