"""Settings that are more than a plain value."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from replsite.settings import _days_or_never


@pytest.mark.parametrize(("text", "days"), [("7", 7.0), ("0", 0.0), ("0.5", 0.5), ("never", None)])
def test_days_are_a_number_or_never(text, days):
    assert _days_or_never(text) == days


@pytest.mark.parametrize("text", ["", "soon", "7d", "None"])
def test_anything_else_is_refused_with_the_words_that_will_do(text):
    with pytest.raises(ImproperlyConfigured, match="a number of days, or never"):
        _days_or_never(text)
