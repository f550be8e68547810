"""What a scrape says of this process: its metrics, and the notifier."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from events.notifier import notifier
from events.notifier.cache import NotifierFigures
from replsite.metrics.process import ProcessCollector
from replsite.metrics.table import PLAIN


def test_all_names_are_described():
    assert {family.name for family in ProcessCollector().describe()} == {metric.name for metric in PLAIN}


# --- the notifier -------------------------------------------------------------------------------------------------------


def scrape_of_notifier(monkeypatch: pytest.MonkeyPatch, figures: NotifierFigures | None) -> set[str]:
    monkeypatch.setattr(notifier, "figures", lambda: figures)
    registry = CollectorRegistry()
    registry.register(ProcessCollector())
    lines = generate_latest(registry).decode().splitlines()
    return {line for line in lines if line.startswith("replsite_hot") and "_created" not in line}


def test_figures_are_exported(monkeypatch):
    found = scrape_of_notifier(
        monkeypatch, NotifierFigures(2, 3, {"events": 7}, {"woken": 5, "refused": 1, "connection": 4})
    )
    assert found == {
        "replsite_hot_waiters 2.0",
        "replsite_hot_woken_total 5.0",
        "replsite_hot_refused_total 1.0",
        "replsite_hot_users 3.0",
        'replsite_hot_entries{stream="events"} 7.0',
        'replsite_hot_begun_anew_total{reason="connection"} 4.0',
        'replsite_hot_begun_anew_total{reason="restored"} 0.0',
        'replsite_hot_begun_anew_total{reason="trimmed"} 0.0',
        'replsite_hot_begun_anew_total{reason="behind"} 0.0',
        'replsite_hot_begun_anew_total{reason="error"} 0.0',
    }


def test_nothing_is_said_of_a_notifier_that_nobody_asked(monkeypatch):
    assert scrape_of_notifier(monkeypatch, None) == set()
