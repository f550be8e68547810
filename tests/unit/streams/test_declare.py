"""Classes that cannot be declared as a stream are refused with what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import models
from django.db.migrations.state import ModelState
from django.forms import modelform_factory
from django.test.utils import isolate_apps

from streams.core import lookup
from streams.declare import stream, upcast
from streams.facts import Fact


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    known = {name: dict(getattr(lookup, name)) for name in ("_streams", "_by_table")}
    with isolate_apps("streams"):
        yield
    for name, before in known.items():
        getattr(lookup, name).clear()
        getattr(lookup, name).update(before)


def made(bases: tuple[type[Any], ...] = (Fact,), meta: dict[str, Any] | None = None, **fields: Any) -> type[Any]:
    inner = type("Meta", (), {"app_label": "streams", **(meta or {})})
    return type("Order", bases, {"__module__": __name__, "Meta": inner, **fields})


def concrete() -> type[Any]:
    inner = type("Meta", (), {"app_label": "streams"})
    return stream("bases")(type("Base", (Fact,), {"__module__": __name__, "Meta": inner}))


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        pytest.param(lambda: stream(made()), r'write @stream\("orders"\)', id="no name"),
        pytest.param(lambda: stream("a b")(made()), "is no name of a stream", id="name"),
        pytest.param(lambda: stream("orders", version=0)(made()), "whole number from 1", id="version"),
        pytest.param(lambda: stream("orders", trimmable="no")(made()), "must be True or False", id="trimmable"),  # type: ignore[arg-type]
        pytest.param(lambda: stream("orders")(made((models.Model,))), "made of streams.Fact", id="no fact"),
        pytest.param(lambda: stream("orders")(made(meta={"abstract": True})), "of its own table", id="abstract"),
        pytest.param(lambda: stream("orders")(made((concrete(),), {"proxy": True})), "of its own table", id="proxy"),
        pytest.param(lambda: stream("orders")(made((concrete(),))), "into an abstract class", id="inherited table"),
        pytest.param(
            lambda: stream("orders")(made(pk=models.CompositePrimaryKey("stream_id", "instance_name"))),
            "add a UniqueConstraint",
            id="composite key",
        ),
        pytest.param(lambda: stream("orders")(made(stream=models.TextField())), "attribute 'stream'", id="stream"),
        pytest.param(lambda: stream("orders")(made(id_field=models.TextField())), "attribute 'id_field'", id="id_field"),
        pytest.param(lambda: stream("orders", key="word")(made()), "names no field", id="key"),
        pytest.param(lambda: stream("orders", key=["stream_id"])(made()), "names no field", id="list as key"),  # type: ignore[arg-type]
        pytest.param(
            lambda: stream("orders")(made(stream_id=models.TextField())), "is a field of streams.Fact", id="field of Fact"
        ),
        pytest.param(
            lambda: stream("orders", key="total")(made(total=models.DecimalField(max_digits=9, decimal_places=2))),
            "must name a text, a whole number or a UUID",
            id="key with several texts",
        ),
        pytest.param(
            lambda: stream("orders", newest_per="at")(made(at=models.DateTimeField())),
            "must name a text, a whole number or a UUID",
            id="newest_per with several texts",
        ),
        pytest.param(lambda: stream("orders", fields="word")(made()), "must be a list", id="fields"),
        pytest.param(
            lambda: stream("orders")(made(blob=models.Field())), "has no form on the wire", id="field"
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_declared_is_refused_with_what_to_write(declare: Callable[[], Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        declare()


@pytest.mark.parametrize("function", [lambda: {}, lambda row, more: row], ids=["of nothing", "of two"])
def test_an_upcast_that_cannot_be_called_with_a_row_is_refused(function: Callable[..., Any]) -> None:
    model = stream("orders", version=2)(made())
    with pytest.raises(ValueError, match=r"upcast\('orders', 1\): .* is called with the older row"):
        upcast(model, 1)(function)


def test_a_new_fact_is_validated_without_what_the_append_fills_in() -> None:
    made(word=models.CharField(max_length=3))(word="new").full_clean(validate_unique=False, validate_constraints=False)


def test_a_form_asks_for_nothing_that_the_append_fills_in_and_migrations_do_not_change() -> None:
    model = made(word=models.CharField(max_length=3))
    form = modelform_factory(model, fields="__all__")({"word": "new"})
    assert [*form.fields] == ["word"]
    assert form.is_valid(), form.errors
    options = ModelState.from_model(model).fields["stream_id"].deconstruct()
    assert options[1:] == ("django.db.models.BigIntegerField", [], {"db_index": True})
