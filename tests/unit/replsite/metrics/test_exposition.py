"""Our text of gauges and counters, held against prometheus_client's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from replsite.metrics.exposition import as_text
from streams.runtime.text import safe_text

VALUES = st.floats() | st.integers(-(10**18), 10**18) | st.booleans()
NAMES = st.text().map(lambda text: safe_text(text, None))
ROWS = st.lists(st.tuples(VALUES, NAMES, NAMES), max_size=4)


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


def test_a_foreign_name_turns_no_text_around():
    """The page, the commands and the CSV show such characters as escapes, too."""
    gauge = GaugeMetricFamily("g", "", labels=("writer",))
    gauge.add_metric(["a\u202eb\u2066\r\x1b[2J"], 1)
    text = as_text([gauge]).decode()
    assert text.splitlines()[-1] == r'g{writer="a\\u202eb\\u2066\\r\\x1b[2J"} 1.0'
