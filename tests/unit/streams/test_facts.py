"""A fact that is made of values by name is the instance that Django makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import models
from django.db.models.expressions import DatabaseDefault
from django.db.models.signals import post_init
from django.test.utils import isolate_apps

from streams.facts import Fact

made: list[int] = []


def counted() -> int:
    made.append(len(made))
    return len(made)


def words() -> list[str]:
    return []


class Noisy(models.TextField):
    """A field with a default of its own."""

    def get_default(self) -> Any:
        return f"noise {counted()}"


class Greets:
    """A base class with a constructor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.greeting = kwargs.pop("greeting", f"hello {kwargs.get('word')}")
        super().__init__(*args, **kwargs)


@pytest.fixture
def models_of_facts() -> dict[str, Any]:
    made.clear()
    with isolate_apps("streams"):

        class Shop(models.Model):  # noqa: DJ008
            class Meta:
                app_label = "streams"

        class Order(Fact):
            word = models.TextField()
            kind = models.CharField(max_length=3, default="new")
            number = models.IntegerField(default=counted)
            words = models.JSONField(default=words)
            noise = Noisy()
            shop = models.ForeignKey(Shop, models.PROTECT, null=True)
            level = models.IntegerField(db_default=7)
            twice = models.GeneratedField(
                expression=models.F("level") * 2, output_field=models.IntegerField(), db_persist=True
            )

            class Meta:
                app_label = "streams"

            @property
            def shout(self) -> str:
                return str(self.word).upper()

            @shout.setter
            def shout(self, value: str) -> None:
                self.word = value.lower()

        class Before(Greets, Fact):
            word = models.TextField()

            class Meta:
                app_label = "streams"

        class Abstract(Greets, models.Model):
            class Meta:
                app_label = "streams"
                abstract = True

        class After(Fact, Abstract):  # noqa: DJ008
            word = models.TextField()

            class Meta:
                app_label = "streams"

        return {"Shop": Shop, "Order": Order, "Before": Before, "After": After}


def shown(one: Any) -> dict[str, Any]:
    found = {name: value for name, value in vars(one).items() if name != "_state"}
    return {name: type(value) if isinstance(value, DatabaseDefault) else value for name, value in found.items()}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"word": "a"},
        {"word": "a", "number": 5, "noise": "none", "words": ["x"], "level": 1},
        {"shop_id": 3, "stream_id": 5, "instance_name": "x"},
        {"pk": 4},
        {"shout": "LOUD"},
        {"shop": "a Shop"},
    ],
)
def test_values_by_name_make_what_django_makes(models_of_facts, given):
    Order = models_of_facts["Order"]
    given = {name: models_of_facts["Shop"](pk=9) if name == "shop" else value for name, value in given.items()}
    of_fact = Order(**given)
    calls = len(made)
    made.clear()
    of_django = Order.__new__(Order)
    models.Model.__init__(of_django, **given)
    assert shown(of_fact) == shown(of_django)
    assert len(made) == calls, "a default is made only for a field that is not given"
    assert vars(of_fact._state).keys() == vars(of_django._state).keys()
    assert of_fact.get_deferred_fields() == of_django.get_deferred_fields() == {"twice"}
    assert of_fact.words is not Order(**given).words or "words" in given


def test_unknown_names_are_refused(models_of_facts):
    with pytest.raises(TypeError, match=r"Order\(\) got unexpected keyword arguments: 'wrod'"):
        models_of_facts["Order"](word="a", wrod="b")


def test_values_in_order_are_taken_as_django_takes_them(models_of_facts):
    one = models_of_facts["Before"](1, 2, "writer", None, word="a")
    assert (one.pk, one.stream_id, one.instance_name, one.word) == (1, 2, "writer", "a")


def test_constructors_of_other_base_classes_get_values_by_name(models_of_facts):
    for name in ("Before", "After"):
        model = models_of_facts[name]
        assert (model(word="a").word, model(word="a").greeting) == ("a", "hello a")
        assert model(word="a", greeting="hi").greeting == "hi"


def test_an_abstract_fact_cannot_be_made():
    with pytest.raises(TypeError, match="Abstract models cannot be instantiated"):
        Fact(stream_id=1)


def test_signals_are_sent(models_of_facts):
    heard = []
    Order = models_of_facts["Order"]

    def hear(sender: Any, instance: Any, **_: Any) -> None:
        heard.append(instance)

    post_init.connect(hear, sender=Order)
    try:
        one = Order(word="a")
        assert [id(fact) for fact in heard] == [id(one)]
    finally:
        post_init.disconnect(hear, sender=Order)
