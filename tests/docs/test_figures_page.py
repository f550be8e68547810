"""The page of figures is made from the results that are kept, and other pages do not state figures of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from script.benchmarks import figures
from script.benchmarks.__main__ import NAMES
from tests.support.session import PROJECT

RESULT: dict[str, Any] = {
    "benchmark": "latency",
    "title": "milliseconds",
    "machine": {"cores": 2, "python": "3.11.2", "load": 0.4, "at": "2026-01-31T00:00:00Z"},
    "rows": [{"followers": 1, "p50": 0.912345}, {"followers": 200, "p50": 2.81234, "ok": True}],
}


def test_page_and_readme_are_what_the_kept_results_say() -> None:
    results = figures.kept()
    assert figures.PAGE.read_text() == figures.page(results, NAMES), "run script/bench --page"
    text = figures.README.read_text()
    assert text == figures.readme(text, results), "run script/bench --page"


def test_each_benchmark_has_its_section_with_its_machine_and_day() -> None:
    text = figures.page({"latency": RESULT}, NAMES)
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert list(sections)[-len(NAMES) :] == list(NAMES)
    assert "2 cores, load 0.4, Python 3.11.2, 2026-01-31" in sections["latency"]
    assert "| followers | p50 | ok |" in sections["latency"]
    assert "| 200 | 2.81 | yes |" in sections["latency"]
    assert "No result is kept: run `script/bench hot`" in sections["hot"]
    assert "| from a commit to a follower, the middle of 200 followers | 2.8 ms |" in text


def test_a_newer_result_is_kept_and_an_older_one_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(figures, "KEPT", tmp_path / "kept")
    measured = tmp_path / "latency.json"
    measured.write_text(json.dumps(RESULT))
    assert figures.keep_newer(tmp_path) == ["latency"]
    assert figures.kept()["latency"]["rows"][1]["p50"] == 2.812
    assert figures.keep_newer(tmp_path) == []
    measured.write_text(json.dumps(RESULT | {"machine": {**RESULT["machine"], "at": "2026-02-01T00:00:00Z"}}))
    assert figures.keep_newer(tmp_path) == ["latency"]


def test_kept_results_name_no_machine_but_its_cores() -> None:
    for result in figures.kept().values():
        assert set(result["machine"]) <= {"cores", "python", "load", "at"}


def test_pages_link_to_sections_that_there_are() -> None:
    named = {
        name
        for path in (PROJECT / "docs").rglob("*.md")
        for name in re.findall(r"figures\.md#([\w-]+)", path.read_text())
    }
    assert named <= {*NAMES, "the-figures-that-matter"}
