"""The registry and the declarations: looked up by name or model, with words that help."""

from __future__ import annotations

import django
import pytest

from streams import registry
from streams.errors import UnknownStream, UnknownTable


@pytest.fixture(autouse=True, scope="module")
def _models() -> None:
    django.setup()


def test_unknown_stream_names_the_known_ones():
    with pytest.raises(UnknownStream, match="Known streams: events, backfill"):
        registry.get("evens")


def test_streams_come_in_the_order_of_the_wire():
    wanted = ["events", "backfill", "caches"]
    assert [name for name in registry.names() if name in wanted] == wanted


def test_stream_of_a_model_and_of_an_object():
    from streams.catalog.models import CacheInvalidation

    assert registry.stream_of(CacheInvalidation) is registry.stream_of(CacheInvalidation()) is registry.get("caches")


def test_model_without_a_stream():
    from streams.models import Reader

    with pytest.raises(UnknownTable, match=r"@stream\('name'\)"):
        registry.stream_of(Reader)


def test_streams_say_their_name():
    assert repr(registry.get("caches")) == "<Stream caches>"
    assert registry.get("backfill").declaration.sign == -1
