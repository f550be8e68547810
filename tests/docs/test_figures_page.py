"""The page of figures is made from the results that are kept, and other pages do not state figures of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from script.benchmarks import figures
from script.benchmarks.__main__ import NAMES
from tests.support.session import PROJECT

RESULT: dict[str, Any] = {
    "benchmark": "latency",
    "title": "milliseconds",
    "machine": {"cores": 2, "python": "3.11.2", "load": 0.4, "loop_ms": 41.5, "at": "2026-01-31T00:00:00Z"},
    "rows": [{"followers": 1, "p50": 0.912345}, {"followers": 200, "p50": 2.81234, "ok": True}],
}


def test_page_readme_and_peers_are_what_the_kept_results_say() -> None:
    results = figures.kept()
    assert figures.PAGE.read_text() == figures.page(results, NAMES), "run script/bench --page"
    pages = ((figures.README, figures.readme), (figures.PEERS, figures.peers), (figures.SCALE, figures.scale))
    for path, written in pages:
        text = path.read_text()
        assert text == written(text, results), f"{path.name}: run script/bench --page"
    for path, text in figures.pictures(results).items():
        assert path.read_text() == text, f"{path.name}: run script/bench --page"


def test_each_benchmark_has_its_section_with_its_machine_and_day() -> None:
    text = figures.page({"latency": RESULT}, NAMES)
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert list(sections)[-len(NAMES) :] == list(NAMES)
    assert "2 cores of 41.5 ms for a loop of 10^6 steps, load 0.4, Python 3.11.2, 2026-01-31" in sections["latency"]
    assert "| followers | p50 | ok |" in sections["latency"]
    assert "| 200 | 2.81 | yes |" in sections["latency"]
    assert "No result is kept: run `script/bench hot`" in sections["hot"]
    assert "| from a commit to a follower, the middle of 200 followers | 2.8 ms |" in text


def test_tools_stand_side_by_side() -> None:
    row = {"tool": "a", "driver": "b", "facts_per_second": 1234.5, "cpu_application": 0.512, "cpu_postgresql": 0.25}
    rows = [
        row | {"what": "handling", "cpu": 0.762, "p50": "", "p99": ""},
        row | {"what": "200 a second", "cpu": 0.762, "p50": 1.26, "p99": 20.0},
    ]
    text = figures.peers(f"before {figures.BEGIN} old {figures.END} after", {"outbox": {**RESULT, "rows": rows}})
    assert text.startswith("before ")
    assert text.endswith(" after")
    assert " old " not in text
    assert "| tool | driver | handling | 200 a second | p50, p99 |" in text
    assert "| a | b | 0.51 + 0.25 = 0.76 ms, 1,234/s | 0.51 + 0.25 = 0.76 ms, 1,234/s | 1.3, 20.0 ms |" in text


def of_growth() -> dict[str, Any]:
    some = {"job": "purge & more", "growth": 1.0}
    rows = [{**some, "rows": rows, "cpu": cpu} for rows, cpu in ((100_000, 50.0), (300_000, 60.0))]
    return {**RESULT, "rows": [*rows, {"job": "short", "rows": 100_000, "cpu": -0.5, "growth": None}]}


def test_a_picture_shows_the_growth_of_each_figure_in_light_and_dark() -> None:
    (drawn,) = figures.pictures({"growth": of_growth()}).values()
    root = ElementTree.fromstring(drawn)
    texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "purge & more: 60, 1.20 times" in texts
    assert not any(text.startswith("short") for text in texts)  # too short to compare
    assert {"10⁵", "3·10⁵"} <= set(texts)
    assert "prefers-color-scheme: dark" in drawn
    assert "load 0.4" in drawn
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 1


def test_the_plan_takes_its_figures_from_the_benchmark() -> None:
    def row(name: str, each: float) -> dict[str, Any]:
        return {
            "figure": name,
            "at 20,000": each,
            "at 100,000": each,
            "for_an_event": each,
            "growth": 1.0,
            "at_10^9": "",
        }

    rows = [row(name, 10.0) for name in figures.PLANNED]
    reads = [{"figure": "beside so many: a page, us", "at 20,000": 10.0, "at 100,000": 11.0, "growth": 1.1}]
    results = {"scale": {**RESULT, "rows": rows + reads}}
    text = figures.scale(f"a {figures.BEGIN} b {figures.END} c", results)
    assert (
        "Measured at 20,000 and 100,000 events. 2 cores of 41.5 ms for a loop of 10^6 steps, load 0.4, Python 3.11.2"
        in text
    )
    assert "| all tables | 10 bytes | 1.00 | 0.01 TB |" in text
    assert "| CPU of PostgreSQL | 10.0 µs | 1.00 | 2.8 h |" in text
    (drawn,) = figures.pictures(results).values()
    assert "a page: 11, 1.10 times" in drawn
    assert "CPU of postgres: 10, 1.00 times" in drawn


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
        assert set(result["machine"]) <= {"cores", "python", "load", "loop_ms", "at"}


def test_pages_link_to_sections_that_there_are() -> None:
    named = {
        name
        for path in (PROJECT / "docs").rglob("*.md")
        for name in re.findall(r"figures\.md#([\w-]+)", path.read_text())
    }
    assert named <= {*NAMES, "the-figures-that-matter"}
