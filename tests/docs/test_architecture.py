"""The page *where is what* and its picture are what the layers and docstrings say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from tests.support.scripts import load_script
from tests.support.session import PROJECT

script = load_script("architecture_picture")
TEXT = script.PAGE.read_text()
SVG = "{http://www.w3.org/2000/svg}"


def test_every_package_is_in_the_picture_and_has_a_line() -> None:
    drawn = " ".join(text.text or "" for text in ET.fromstring(script.PICTURE.read_text()).iter(f"{SVG}text"))
    lines = dict(re.findall(r"^\| `([a-z_/]+)` \| (.+) \|$", TEXT, re.M))
    for top in script.top_packages():
        there = {path.parent.relative_to(PROJECT).as_posix() for path in (PROJECT / top).glob("*/__init__.py")}
        assert there and {name.rpartition("/")[2] for name in there} <= set(re.findall(r"\w+", drawn))
        assert {name for name in there if not name.endswith("/management")} <= set(lines)
    assert all(words.endswith(".") for words in lines.values())


def test_files_that_the_paths_name_exist() -> None:
    named = re.findall(r"`((?:streams|state|events|pipeline|replsite)/[\w/.]*)`", TEXT)
    assert len(named) > 60 and [name for name in named if not (PROJECT / name).exists()] == []
