"""Whatever Django offers for writing is refused of facts, with the way out; appending, trimming and reading go on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.core import serializers
from django.db import connection, models
from django.db.models import QuerySet
from django.db.models.manager import BaseManager

from events.models import CurrentStateDelta, Event
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.checks import check_facts
from streams.core import lookup
from streams.declare import stream
from streams.errors import FactIsFixed
from streams.facts import Fact, FactQuerySet
from tests.support.writing import append, fact

pytestmark = pytest.mark.django_db(transaction=True)

#: Each is given a manager or a queryset, and a fact that is stored.
WRITES: dict[str, Any] = {
    "create": lambda rows, one: rows.create(cache_name="x"),
    "bulk_create": lambda rows, one: rows.bulk_create([fact()]),
    "bulk_create with a used ID": lambda rows, one: rows.bulk_create(
        [CacheInvalidation(stream_id=one.stream_id, instance_name="x", cache_name="x")]
    ),
    "bulk_create that updates": lambda rows, one: rows.bulk_create(
        [one], update_conflicts=True, update_fields=["cache_name"], unique_fields=["id"]
    ),
    "update": lambda rows, one: rows.update(cache_name="x"),
    "bulk_update": lambda rows, one: rows.bulk_update([one], ["cache_name"]),
    "get_or_create": lambda rows, one: rows.get_or_create(cache_name="x"),
    "get_or_create of what is there": lambda rows, one: rows.get_or_create(pk=one.pk),
    "update_or_create": lambda rows, one: rows.update_or_create(pk=one.pk, defaults={"cache_name": "x"}),
    "_update": lambda rows, one: rows._update([]),
    "_insert": lambda rows, one: rows._insert([fact()], []),
}
DELETES: dict[str, Any] = {
    "delete": lambda rows, one: rows.delete(),
    "delete of some": lambda rows, one: rows.filter(pk=one.pk).delete(),
    "_raw_delete": lambda rows, one: rows._raw_delete("default"),
}
LATER = ("acreate", "abulk_create", "aupdate", "abulk_update", "aget_or_create", "aupdate_or_create", "adelete")


@pytest.fixture
def one() -> CacheInvalidation:
    (token,) = append(1)
    return CacheInvalidation.objects.get(stream_id=token)


@pytest.fixture
def unchanged(one: CacheInvalidation) -> Iterator[None]:
    before = list(CacheInvalidation.objects.values())
    yield
    assert list(CacheInvalidation.objects.values()) == before


@pytest.mark.parametrize("rows", ["objects", "_base_manager", "_default_manager"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.usefixtures("unchanged")
def test_managers_refuse_to_write(write, rows, one):
    with pytest.raises(FactIsFixed, match=r"registry.stream_of\(CacheInvalidation\).append"):
        WRITES[write](getattr(CacheInvalidation, rows), one)
    with pytest.raises(FactIsFixed):
        WRITES[write](getattr(CacheInvalidation, rows).all(), one)


@pytest.mark.parametrize("write", DELETES)
@pytest.mark.usefixtures("unchanged")
def test_querysets_refuse_to_delete(write, one):
    with pytest.raises(FactIsFixed, match=r"manage\.py purge stream caches --keep 30d"):
        DELETES[write](CacheInvalidation.objects.all(), one)
    with pytest.raises(FactIsFixed):
        DELETES[write](CacheInvalidation._base_manager.all(), one)


@pytest.mark.parametrize("name", LATER)
@pytest.mark.usefixtures("unchanged")
def test_async_forms_are_refused_at_once(name):
    """The refusal is not left to a coroutine that nobody awaits."""
    with pytest.raises(FactIsFixed):
        getattr(CacheInvalidation.objects.all(), name)()


@pytest.mark.usefixtures("unchanged")
def test_instances_refuse(one):
    one.cache_name = "x"
    for write in (one.save, one.delete, fact().save):
        with pytest.raises(FactIsFixed):
            write()


async def test_instances_refuse_later():
    for write in (fact().asave, fact().adelete):
        with pytest.raises(FactIsFixed):
            await write()


@pytest.mark.usefixtures("unchanged")
def test_fixtures_are_refused(one):
    """``loaddata`` would bring facts under IDs that were read as something else, or that nobody reserved."""
    text = serializers.serialize("json", [one])
    (read,) = serializers.deserialize("json", text)
    with pytest.raises(FactIsFixed):
        read.save()


def test_nothing_that_writes_was_forgotten():
    """Of the public methods of a queryset, those that Django marks as altering data are refused."""
    altering = {name for name, found in inspect.getmembers(QuerySet) if getattr(found, "alters_data", False)}
    altering |= {name for name in dir(QuerySet) if name.endswith(("create", "update", "delete", "_insert"))}
    plain = {name for name in altering if getattr(QuerySet, name) is getattr(FactQuerySet, name)}
    assert plain <= {
        "_batched_insert",
        "_prepare_for_bulk_create",
        "select_for_update",
    }  # which end in _insert, or only lock
    assert issubclass(type(CacheInvalidation.objects), BaseManager)


@pytest.mark.parametrize("model", [Event, CurrentStateDelta])
def test_data_that_is_a_stream_says_how_it_goes(model):
    with pytest.raises(FactIsFixed, match=r"manage\.py purge --help"):
        model.objects.all().delete()
    with pytest.raises(FactIsFixed):
        model._base_manager.get_or_create(type="x")


def test_every_model_of_facts_refuses():
    for bound in registry.all_streams():
        for model in bound.models:
            assert isinstance(model._base_manager.all(), FactQuerySet), model
            assert isinstance(model._default_manager.all(), FactQuerySet), model
            with pytest.raises(FactIsFixed):
                model._base_manager.all().delete()


def test_repairs_say_so(one):
    assert CacheInvalidation.objects.writable().filter(pk=one.pk).update(cache_name="repaired") == 1
    assert CacheInvalidation.objects.get().cache_name == "repaired"
    assert CacheInvalidation.objects.filter(pk=one.pk).writable().delete()[0] == 1


def test_appending_still_works(one):
    assert append(3)
    assert CacheInvalidation.objects.count() == 4


# --- foreign keys -------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(made_shop: tuple[type[models.Model], type[Fact], type[Fact]]) -> tuple[Any, Any, Any]:
    """The tables are empty: those of the site alone are emptied after a test."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE test_basket, test_paid, test_noted")
    return made_shop


@pytest.fixture(scope="module")
def made_shop(
    django_db_setup: None, django_db_blocker: Any
) -> Iterator[tuple[type[models.Model], type[Fact], type[Fact]]]:
    """A model, and facts that point to it: one that would be deleted with it, one that would be changed."""
    known = {name: dict(getattr(lookup, name)) for name in ("_streams", "_by_table")}

    class Basket(models.Model):  # noqa: DJ008
        class Meta:
            app_label = "streams"
            db_table = "test_basket"

    class Paid(Fact):
        word = models.TextField()
        basket = models.ForeignKey(Basket, models.CASCADE, related_name="paid")

        class Meta:
            app_label = "streams"
            db_table = "test_paid"

    class Noted(Fact):
        word = models.TextField()
        basket = models.ForeignKey(Basket, models.SET_NULL, null=True, related_name="noted")

        class Meta:
            app_label = "streams"
            db_table = "test_noted"

    class Open(Fact):
        word = models.TextField()
        plain = models.Manager()

        class Meta:
            app_label = "streams"
            db_table = "test_open"

    stream("test_open")(Open)

    class Proxied(Noted):
        objects = models.Manager()

        class Meta:
            app_label = "streams"
            proxy = True

    found = Basket, stream("test_paid")(Paid), stream("test_noted")(Noted)
    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        for model in found:
            editor.create_model(model)
    yield found
    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        for model in reversed(found):
            editor.delete_model(model)
    for name, before in known.items():
        getattr(lookup, name).clear()
        getattr(lookup, name).update(before)
    for name in ("basket", "paid", "noted", "open", "proxied"):
        del apps.all_models["streams"][name]
    apps.clear_cache()


def test_cascades_are_refused(shop):
    Basket, Paid, _ = shop
    basket = Basket.objects.create()
    registry.get("test_paid").append(Paid(word="x", basket=basket))
    for delete in (basket.delete, Basket.objects.all().delete, Basket.objects.filter(pk=basket.pk).delete):
        with pytest.raises(FactIsFixed, match=r"on_delete=models\.DO_NOTHING and db_constraint=False"):
            delete()
    assert (Basket.objects.count(), Paid.objects.count()) == (1, 1)
    empty = Basket.objects.create()
    assert empty.delete()[0] == 1


def test_keys_are_not_set_to_null(shop):
    Basket, _, Noted = shop
    basket = Basket.objects.create()
    registry.get("test_noted").append(Noted(word="x", basket=basket))
    with pytest.raises(FactIsFixed):
        basket.delete()
    with pytest.raises(FactIsFixed):
        Basket.objects.filter(pk=basket.pk).delete()
    assert Noted.objects.get().basket_id == basket.pk


def test_related_managers_are_refused(shop):
    Basket, Paid, Noted = shop
    basket, other = Basket.objects.create(), Basket.objects.create()
    registry.get("test_paid").append(Paid(word="x", basket=basket))
    registry.get("test_noted").append(Noted(word="x", basket=basket))
    paid, noted = Paid.objects.get(), Noted.objects.get()
    writes = [
        lambda: basket.paid.create(word="y"),
        lambda: basket.paid.get_or_create(word="y"),
        lambda: basket.paid.update_or_create(word="y"),
        lambda: basket.paid.update(word="y"),
        lambda: basket.paid.all().delete(),
        lambda: other.paid.add(paid),
        lambda: other.paid.add(Paid(word="y"), bulk=False),
        lambda: other.noted.set([noted]),
        basket.noted.clear,
        lambda: basket.noted.clear(bulk=False),
        lambda: basket.noted.remove(Noted.objects.get()),
    ]
    for write in writes:
        with pytest.raises(FactIsFixed):
            write()
    assert (basket.paid.get().word, basket.noted.get().word) == ("x", "x")


def test_a_related_object_that_was_not_saved_is_refused_and_not_left_out(shop):
    Basket, _, Noted = shop
    basket = Basket()
    fact = Noted(word="x", basket=basket)
    with pytest.raises(ValueError, match="unsaved related object 'basket'"):
        Noted.stream.append(fact)
    with pytest.raises(ValueError, match="unsaved related object 'basket'"), Noted.stream.reserve() as reserved:
        reserved.write(fact)
    assert not Noted.objects.exists()
    basket.save()  # after it was assigned: the fact gets its key, as Django's own save() gives it
    Noted.stream.append(fact)
    with Noted.stream.reserve() as reserved:
        late = Basket()
        fact = Noted(word="y", basket=late)
        late.save()
        reserved.write(fact)
    assert list(Noted.objects.order_by("stream_id").values_list("basket_id", flat=True)) == [basket.pk, late.pk]


def test_errors_and_texts_speak_of_the_class(shop):
    Basket, _, Noted = shop
    with pytest.raises(
        FactIsFixed, match=r"transaction that it belongs to: Noted\.stream\.append\(Noted\(\.\.\.\)\)\."
    ):
        Noted.objects.create(word="x")
    fact = Noted(word="x", basket=Basket.objects.create())
    assert str(fact) == "Noted (not appended)"
    Noted.stream.append(fact)
    assert str(fact) == str(Noted.objects.get()) == f"Noted {fact.stream_id}"


def test_the_check_warns_of_both(shop):
    found = {(warning.obj.__name__, warning.id) for warning in check_facts(None)}
    managers = {("Open", "streams.W013"), ("Proxied", "streams.W013")}  # a proxy may bring a manager of its own
    assert found == {("Paid", "streams.W012"), ("Noted", "streams.W012"), *managers}


def test_the_shipped_models_pass():
    made_here = {"Paid", "Noted", "Open", "Proxied"}
    assert [warning for warning in check_facts(None) if warning.obj.__name__ not in made_here] == []
