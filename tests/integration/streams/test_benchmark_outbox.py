"""The benchmark of outboxes counts the effects, and measures what it says. (The tools of others are not installed for tests.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.db import connection

from script.benchmarks import outbox
from script.benchmarks.outbox import Sizes, Tool
from script.benchmarks.report import BESIDE_OPEN, Report

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300), pytest.mark.scenario]
SIZES = Sizes(rounds=1, facts=40, threads=(1, 3), chunked=150, warm=5, paced=40)
ALONE = {"producing, 1 thread", "producing, 3 threads", "handling", "handling, chunks", "200 a second"}
WHAT = ALONE | {f"{what}{BESIDE_OPEN}" for what in ALONE}


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> list[Tool]:
    monkeypatch.delenv("REPLSITE_BENCH_PEERS", raising=False)
    monkeypatch.delenv("REPLSITE_BENCH_PSYCOPG", raising=False)
    return outbox.tools()


def test_what_is_not_installed_is_left_out(tools: list[Tool], capsys: pytest.CaptureFixture[str]) -> None:
    assert [tool.name for tool in tools] == ["replsite", "outbox table"]
    assert [tool.name for tool in outbox.tools()] == ["replsite", "outbox table"]
    assert "procrastinate is not installed here, so it is left out" in capsys.readouterr().out


def databases() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT datname FROM pg_database WHERE datname LIKE 'bench_shop_%'")
        return {name for (name,) in cursor.fetchall()}


def test_each_fact_has_one_effect_and_each_row_its_figures(
    tools: list[Tool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("script.benchmarks.report.RESULTS", tmp_path)
    report = Report("outbox", "a test", ["what", "tool", "cpu", "of_ours"])
    for what, of_tools in outbox.measure(tools, SIZES).items():
        outbox.add(report, what, of_tools)
    report.finish()
    rows = json.loads((tmp_path / "outbox.json").read_text())["rows"]
    assert {(row["what"], row["tool"]) for row in rows} == {(what, tool.name) for what in WHAT for tool in tools}
    for row in rows:
        assert row["facts_per_second"] > 0
        assert row["cpu_application"] > 0
        assert row["cpu_postgresql"] > 0
        assert row["of_ours"] == 1 or row["tool"] != "replsite"
        if row["what"].startswith("200 a second"):
            assert 0 < row["p50"] <= row["p99"]
        else:
            assert row["p50"] == ""
    assert not databases()


def test_an_effect_that_is_missing_or_double_fails(tools: list[Tool], tmp_path: Path) -> None:
    with outbox.opened(tools[1], 0, tmp_path) as shop:
        shop.backlog(7)
        shop.handle(1)
        shop.handled -= 1
        with pytest.raises(RuntimeError, match=r"outbox table: 7 business rows of 7 and 7 effects, 7 .* of 6 facts"):
            shop.check()
        own = connection.copy("shop")
        own.settings_dict["NAME"] = shop.database["NAME"]
        with own.cursor() as cursor:
            cursor.execute("UPDATE goods_invoice SET order_id = 'order 0' WHERE order_id = 'order 1'")
        own.close()
        shop.handled += 1
        with pytest.raises(RuntimeError, match="7 effects, 6 of them different, of 7 facts"):
            shop.check()
    assert not databases()


def test_a_process_that_ends_says_why(tools: list[Tool], tmp_path: Path) -> None:
    broken = Tool("broken", "no_such_shop", "psycopg2")
    with pytest.raises(RuntimeError, match="no_such_shop"), outbox.opened(broken, 0, tmp_path):
        pass
    assert not databases()
