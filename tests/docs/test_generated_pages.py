"""Pages and pictures that follow from the code are what it says, and ``--check`` tells one that is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from script import generated_pages


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return generated_pages.made()


def test_files_are_what_the_code_says(
    made: dict[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["generated_pages", "--check"])
    assert len(made) > len(generated_pages.SCRIPTS)
    assert generated_pages.write_or_compare(made) == 0, capsys.readouterr().err


def test_check_tells_an_old_file_and_leaves_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, well = tmp_path / "old.md", tmp_path / "well.md"
    old.write_text("old")
    well.write_text("new")
    files = {old: "new", well: "new", tmp_path / "missing.md": "new"}
    monkeypatch.setattr(sys, "argv", ["generated_pages", "--check"])
    assert generated_pages.write_or_compare(files) == 1
    assert capsys.readouterr().err.startswith("old.md, missing.md: not what the code says")
    assert old.read_text() == "old"
    monkeypatch.setattr(sys, "argv", ["generated_pages"])
    assert generated_pages.write_or_compare(files) == 0
    assert {path.read_text() for path in files} == {"new"}


def test_a_table_is_replaced_between_its_marks() -> None:
    page = "before\n<!-- table one -->\n\n{}\n\n<!-- end of table one -->\nafter"
    assert generated_pages.with_tables(page.format("old"), {"one": "new", "other": "none"}) == page.format("new")


def test_pictures_are_light_and_dark(made: dict[Path, str]) -> None:
    pictures = [text for path, text in made.items() if path.suffix == ".svg"]
    assert len(pictures) == 2
    assert all("prefers-color-scheme: dark" in text for text in pictures)
