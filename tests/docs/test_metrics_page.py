"""The page of metrics says what the code exports."""

from __future__ import annotations

import json

import pytest

from tests.support.scripts import load_script
from tests.support.session import PROJECT

script = load_script("metrics_page")


def test_every_promised_name_is_on_the_page():
    text = script.PAGE.read_text()
    for one in json.loads((PROJECT / "tests" / "data" / "metric_names.json").read_text()):
        for name in (one["own"], *(theirs["name"] for theirs in one.get("synapse", ()))):
            assert f"`{name}" in text


@pytest.mark.parametrize("mark", ["cluster", "process", "synapse"])
def test_every_table_has_its_place(mark):
    assert f"<!-- table {mark} -->" in script.PAGE.read_text()
