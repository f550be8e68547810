"""Settings of streams whose text is more than a value of its type."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streams.declared_settings import BadSetting, from_django, from_texts
from streams.stream_settings import StreamSettings


@pytest.mark.parametrize(("text", "days"), [("7", 7.0), ("0", 0.0), ("0.5", 0.5), ("never", None)])
def test_days_are_a_number_or_never(text, days):
    assert from_texts(StreamSettings, {"REPLSITE_CENSOR_AFTER_DAYS": text}).censor_after_days == days


@pytest.mark.parametrize("text", ["", "soon", "7d", "None"])
def test_anything_else_is_refused_with_the_words_that_will_do(text):
    with pytest.raises(BadSetting, match="a number of days, or never"):
        from_texts(StreamSettings, {"REPLSITE_CENSOR_AFTER_DAYS": text})


def test_what_systemd_sets_is_read_under_its_names():
    found = from_texts(StreamSettings, {"NOTIFY_SOCKET": "@a", "WATCHDOG_USEC": "3000000"})
    assert (found.notify_socket, found.watchdog_seconds) == ("@a", 3.0)


def test_a_former_name_counts_where_the_new_one_is_not_set():
    former = {"REPLSITE_INSTANCE": "web"}
    assert from_texts(StreamSettings, former).writer == "web"
    assert from_texts(StreamSettings, former | {"REPLSITE_WRITER": "mail"}).writer == "mail"
    assert from_django(StreamSettings, SimpleNamespace(**former)).writer == "web"
    assert from_django(StreamSettings, SimpleNamespace(**former, REPLSITE_WRITER="mail")).writer == "mail"
