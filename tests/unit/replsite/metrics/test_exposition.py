"""Our text of gauges and counters, held against prometheus_client's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from replsite.metrics.exposition import as_text

VALUES = st.floats() | st.integers(-(10**18), 10**18) | st.booleans()
ROWS = st.lists(st.tuples(VALUES, st.text(), st.text()), max_size=4)


class Families:
    """A collector of given families."""

    def __init__(self, *families):
        self.collect = lambda: iter(families)


def lines(text):
    """Lines of a page, each number as a number: both ways to write one mean the same."""
    for line in text.decode().split("\n"):
        begin, _, number = line.rpartition(" ")
        yield line if line.startswith("#") or not line else (begin, repr(float(number)))


@given(ROWS, ROWS, VALUES, st.text())
def test_the_text_says_what_the_library_says(gauges, counters, alone, documentation):
    gauge = GaugeMetricFamily("g", documentation, labels=("writer", "stream"))
    counter = CounterMetricFamily("c", "Rows", labels=("b", "a"))
    for family, rows in ((gauge, gauges), (counter, counters)):
        for value, *labels in rows:
            family.add_metric(labels, value)
    families = gauge, counter, GaugeMetricFamily("one", "", value=alone)
    assert list(lines(as_text(families))) == list(lines(generate_latest(Families(*families))))
