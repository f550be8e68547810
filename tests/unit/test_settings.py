"""Settings that are more than a plain value."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from replsite.settings import _days_or_never, _ports


@pytest.mark.parametrize(("text", "days"), [("7", 7.0), ("0", 0.0), ("0.5", 0.5), ("never", None)])
def test_days_are_a_number_or_never(text, days):
    assert _days_or_never(text) == days


@pytest.mark.parametrize("text", ["", "soon", "7d", "None"])
def test_anything_else_is_refused_with_the_words_that_will_do(text):
    with pytest.raises(ImproperlyConfigured, match="a number of days, or never"):
        _days_or_never(text)


@pytest.mark.parametrize(("text", "ports"), [("", []), ("9101", [9101]), ("9101-9103", [9101, 9102, 9103])])
def test_ports_are_one_or_from_the_first_to_the_last(text, ports):
    assert list(_ports(text)) == ports


@pytest.mark.parametrize("text", ["many", "9101-", "9103-9101", "0", "70000", "65535-65536", "-5"])
def test_ports_that_nobody_can_listen_on_are_refused(text):
    with pytest.raises(ImproperlyConfigured, match="REPLSITE_METRICS_PORTS"):
        _ports(text)
