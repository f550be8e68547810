"""The page *where is what* and its picture are what the layers and docstrings say."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET

from tests.support.scripts import load_script
from tests.support.session import PROJECT

script = load_script("architecture_picture")
TEXT = script.PAGE.read_text()
SVG = "{http://www.w3.org/2000/svg}"


def test_picture_and_tables_are_up_to_date() -> None:
    assert script.PICTURE.read_text() == script.picture(), "run script/architecture_picture.py"
    assert script.page(TEXT) == TEXT, "run script/architecture_picture.py"


def test_every_package_is_in_the_picture_and_has_a_line() -> None:
    drawn = " ".join(text.text or "" for text in ET.fromstring(script.PICTURE.read_text()).iter(f"{SVG}text"))
    lines = dict(re.findall(r"^\| `([a-z_/]+)` \| (.+) \|$", TEXT, re.M))
    for room in script.rooms():
        there = {path.parent.relative_to(PROJECT).as_posix() for path in (PROJECT / room).glob("*/__init__.py")}
        assert there and {name.rpartition("/")[2] for name in there} <= set(re.findall(r"\w+", drawn))
        assert {name for name in there if not name.endswith("/management")} <= set(lines)
    assert all(words.endswith(".") for words in lines.values())


def test_files_that_the_paths_name_exist() -> None:
    named = re.findall(r"`((?:streams|state|events|pipeline|replsite)/[\w/.]*)`", TEXT)
    assert len(named) > 60 and [name for name in named if not (PROJECT / name).exists()] == []


def test_the_picture_is_light_and_dark() -> None:
    assert "prefers-color-scheme: dark" in script.PICTURE.read_text()


def test_check_tells_an_old_picture(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["architecture_picture.py", "--check"])
    assert script.main() == 0
    old = tmp_path / "architecture.svg"
    old.write_text("old")
    monkeypatch.setattr(script, "PICTURE", old)
    assert script.main() == 1 and "run script/architecture_picture.py" in capsys.readouterr().err
    assert old.read_text() == "old"
