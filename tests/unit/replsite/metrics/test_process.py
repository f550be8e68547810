"""What a scrape says of cached functions and of the notifier."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from events.notifier import notifier
from events.notifier.cache import NotifierFigures
from replsite.metrics.process import ProcessCollector
from replsite.metrics.table import PLAIN
from streams.core import invalidation
from streams.core.cache_store import CacheStore


@pytest.fixture
def store() -> Iterator[CacheStore]:
    with patch.dict(invalidation.stores, clear=True):
        made = CacheStore(1)
        invalidation.register("words", made)
        yield made


def scrape() -> set[str]:
    registry = CollectorRegistry()
    registry.register(ProcessCollector())
    return {line for line in generate_latest(registry).decode().splitlines() if line.startswith("replsite_cache")}


def test_counts_are_exported(store):
    store.get(("a",))
    store.finish(store.begin(("a",)), 1)
    store.get(("a",))
    store.finish(store.begin(("b",)), 2)
    ticket = store.begin(("b",))
    store.drop(("b",))
    store.finish(ticket, 3)
    assert {line for line in scrape() if "_created" not in line} == {
        'replsite_cache_lookups_total{cache="words",result="hit"} 1.0',
        'replsite_cache_lookups_total{cache="words",result="miss"} 1.0',
        'replsite_cache_entries{cache="words"} 0.0',
        'replsite_cache_invalidations_total{cache="words"} 1.0',
        'replsite_cache_evictions_total{cache="words"} 1.0',
        'replsite_cache_spoiled_total{cache="words"} 1.0',
    }


def test_nothing_is_said_where_nothing_is_cached(store):
    invalidation.stores.clear()
    assert scrape() == set()


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
