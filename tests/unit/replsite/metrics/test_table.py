"""The names that operators were promised, one by one: ours, Synapse's, labels, types, and units."""

from __future__ import annotations

import json

import pytest

from replsite.metrics.table import CLUSTER, PROCESS, SYNAPSE
from streams.runtime.text import MOST_LABELS
from tests.support.session import PROJECT

LIST = json.loads((PROJECT / "tests" / "data" / "metric_names.json").read_text())
OURS = {metric.exported: metric for metric in (*CLUSTER, *PROCESS)}


def theirs() -> dict[str, set[str]]:
    """Synapse's names with their labels."""
    found = {metric.exported: set(metric.labels) for metric in SYNAPSE}
    return found | {name: set(labels) for metric in OURS.values() for _, name, labels in metric.names_of_synapse()}


@pytest.mark.parametrize("wanted", LIST, ids=[one["own"] for one in LIST])
def test_our_name_has_these_labels_and_this_type(wanted):
    metric = OURS[wanted["own"]]
    assert (set(metric.labels), metric.type) == (set(wanted["labels"]), wanted["type"])


@pytest.mark.parametrize(
    "wanted", [name for one in LIST for name in one.get("synapse", ())], ids=lambda name: name["name"]
)
def test_the_name_of_synapse_has_these_labels(wanted):
    server = {"server_name"} if wanted.get("server_name", True) else set()
    assert theirs()[wanted["name"]] == {*wanted["labels"], *server}


def test_each_alias_is_of_labels_that_the_metric_has():
    for metric in OURS.values():
        for alias in metric.synapse:
            assert {*alias.labels, *alias.where} <= set(metric.labels)


def test_what_counts_otherwise_there_stands_for_a_metric_that_there_is():
    assert {metric.stands_for for metric in SYNAPSE} <= {metric.name for metric in OURS.values()}


def test_no_name_is_given_twice():
    names = [metric.name for metric in (*CLUSTER, *PROCESS, *SYNAPSE)]
    names += [alias.name for metric in OURS.values() for alias in metric.synapse]
    assert len(names) == len(set(names))


def test_labels_that_others_choose_are_bounded_by_a_number():
    assert MOST_LABELS <= 100
