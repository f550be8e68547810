"""Pages and pictures that scripts write are what the code says, and ``--check`` tells one that is not."""

from __future__ import annotations

import sys

import pytest

from tests.support.scripts import load_script

#: Script -> what it writes, by the name that it has there.
WRITTEN = {
    "architecture_picture": "PICTURE",
    "dataflow_picture": "PICTURE",
    "errors_page": "PAGE",
    "frames_page": "PAGE",
    "metrics_page": "PAGE",
    "models_page": "PAGE",
    "options_page": "PAGE",
    "settings_page": "PAGE",
}


@pytest.mark.parametrize(("name", "written"), WRITTEN.items())
def test_check_tells_an_old_page(name, written, monkeypatch, tmp_path, capsys):
    script = load_script(name)
    monkeypatch.setattr(sys, "argv", [name, "--check"])
    assert script.main() == 0, capsys.readouterr().err
    text = getattr(script, written).read_text()
    old = tmp_path / "old"
    in_table = {"metrics_page": "replsite_stream_position", "settings_page": "heartbeat"}.get(name)
    old.write_text(text.replace(in_table, "place") if in_table else "old")
    before = old.read_text()
    monkeypatch.setattr(script, written, old)
    assert script.main() == 1 and f"run script/{name}.py" in capsys.readouterr().err
    assert old.read_text() == before


@pytest.mark.parametrize("name", [name for name, written in WRITTEN.items() if written == "PICTURE"])
def test_a_picture_is_light_and_dark(name):
    assert "prefers-color-scheme: dark" in load_script(name).PICTURE.read_text()
