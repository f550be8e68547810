"""The page of metrics says what the code exports."""

from __future__ import annotations

import json

import pytest

from tests.support.scripts import load_script
from tests.support.session import PROJECT

script = load_script("metrics_page")


def test_the_page_is_what_the_code_says():
    text = script.PAGE.read_text()
    assert script.page(text) == text, "run script/metrics_page.py"


def test_every_promised_name_is_on_the_page():
    text = script.PAGE.read_text()
    for one in json.loads((PROJECT / "tests" / "data" / "metric_names.json").read_text()):
        for name in (one["own"], *(theirs["name"] for theirs in one.get("synapse", ()))):
            assert f"`{name}" in text


def test_a_page_without_a_name_is_noticed(monkeypatch, tmp_path, capsys):
    page = tmp_path / "metrics.md"
    page.write_text(script.PAGE.read_text().replace("replsite_stream_position", "replsite_stream_place"))
    monkeypatch.setattr(script, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["metrics_page.py", "--check"])
    assert script.main() == 1
    assert "run script/metrics_page.py" in capsys.readouterr().err


@pytest.mark.parametrize("mark", ["cluster", "process", "synapse"])
def test_every_table_has_its_place(mark):
    assert f"<!-- table {mark} -->" in script.PAGE.read_text()
