"""The page of frames is what the schemas say."""

import sys

from tests.support.scripts import load_script

script = load_script("frames_page")


def test_page_is_what_the_schemas_say():
    assert script.PAGE.read_text() == script.page(), "run script/frames_page.py"


def test_check_tells_an_old_page(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["frames_page.py", "--check"])
    assert script.main() == 0
    old = tmp_path / "frames.md"
    old.write_text("old")
    monkeypatch.setattr(script, "PAGE", old)
    assert script.main() == 1 and "run script/frames_page.py" in capsys.readouterr().err
    assert old.read_text() == "old"
