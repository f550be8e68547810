"""What Django offers for inserting appends facts; what would change them is refused by the database, with the way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.core import serializers
from django.core.files.base import ContentFile
from django.core.files.storage import InMemoryStorage
from django.db import IntegrityError, connection, models, transaction
from django.db.models import Value
from django.db.models.functions import Lower
from django.db.models.signals import post_save
from django.utils import timezone

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.checks import check_facts
from streams.core import lookup
from streams.declare import stream
from streams.errors import ForeignFact, UnusableFact
from streams.facts import Fact, FactQuerySet
from streams.holds.maintenance import changing_facts
from tests.support.writing import append, fact, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


async def _acreate(rows: Any) -> None:
    await rows.acreate(cache_name="x")


#: Each is given a manager or a queryset, and a fact that is stored, and appends the name ``x``.
APPENDS: dict[str, Any] = {
    "create": lambda rows, one: rows.create(cache_name="x"),
    "bulk_create": lambda rows, one: rows.bulk_create([CacheInvalidation(cache_name="x") for _ in range(3)]),
    "bulk_create in batches": lambda rows, one: rows.bulk_create(
        [CacheInvalidation(cache_name="x") for _ in range(5)], batch_size=2
    ),
    "get_or_create": lambda rows, one: rows.get_or_create(cache_name="x"),
    "save": lambda rows, one: CacheInvalidation(cache_name="x").save(),
    "acreate": lambda rows, one: async_to_sync(_acreate)(rows),
}
#: Each would change a fact.
CHANGES: dict[str, Any] = {
    "update": lambda rows, one: rows.update(cache_name="x"),
    "bulk_update": lambda rows, one: rows.bulk_update([one], ["cache_name"]),
    "update_or_create": lambda rows, one: rows.update_or_create(pk=one.pk, defaults={"cache_name": "x"}),
    "save": lambda rows, one: one.save(),
    "delete": lambda rows, one: rows.all().delete(),
    "delete of some": lambda rows, one: rows.filter(pk=one.pk).delete(),
    "_raw_delete": lambda rows, one: rows.all()._raw_delete("default"),
    "delete of one": lambda rows, one: one.delete(),
}


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
@pytest.mark.parametrize("write", APPENDS)
def test_managers_append(write, rows, one):
    APPENDS[write](getattr(CacheInvalidation, rows), one)
    found = list(CacheInvalidation.objects.filter(cache_name="x"))
    assert found and {row.instance_name for row in found} == {"master"}
    numbers = sorted(row.stream_id for row in found)
    assert numbers[0] > one.stream_id
    wait_for_linear(numbers[-1])


def test_what_was_created_knows_what_it_became(one):
    made = CacheInvalidation.objects.create(cache_name="x", keys=["a"])
    several = CacheInvalidation.objects.bulk_create([CacheInvalidation(cache_name=f"c{n}") for n in range(3)])
    for row in (made, *several):
        stored = CacheInvalidation.objects.get(pk=row.pk)
        assert (stored.stream_id, stored.cache_name, stored.token) == (row.stream_id, row.cache_name, row.token)
    assert [row.cache_name for row in CacheInvalidation.objects.order_by("stream_id")][-3:] == ["c0", "c1", "c2"]


def test_signals_are_sent_as_for_any_model():
    seen: list[Any] = []

    def saved(sender: Any, instance: Any, created: bool, **_: Any) -> None:
        seen.append((instance.stream_id, created))

    post_save.connect(saved, sender=CacheInvalidation)
    try:
        made = CacheInvalidation.objects.create(cache_name="x")
    finally:
        post_save.disconnect(saved, sender=CacheInvalidation)
    assert seen == [(made.stream_id, True)]


@pytest.mark.usefixtures("unchanged")
def test_what_is_created_in_a_transaction_that_is_rolled_back_is_not_there(one):
    with pytest.raises(KeyError), transaction.atomic():
        CacheInvalidation.objects.create(cache_name="x")
        CacheInvalidation.objects.bulk_create([fact(), fact()])
        raise KeyError


@pytest.mark.parametrize("rows", ["objects", "_base_manager"])
@pytest.mark.parametrize("write", CHANGES)
@pytest.mark.usefixtures("unchanged")
def test_changes_are_refused_with_the_way_out(write, rows, one):
    one.cache_name = "x"
    with pytest.raises(IntegrityError, match=r"is refused(.|\n)*manage\.py purge stream caches --keep 30d"):
        CHANGES[write](getattr(CacheInvalidation, rows), one)


@pytest.mark.usefixtures("unchanged")
def test_a_bulk_create_that_would_change_facts_is_refused(one):
    for options in ({"ignore_conflicts": True}, {"update_conflicts": True, "update_fields": ["cache_name"]}):
        with pytest.raises(ForeignFact, match="facts never change"):
            CacheInvalidation.objects.bulk_create([fact()], **options)
    with pytest.raises(ForeignFact, match="ID"):
        CacheInvalidation.objects.bulk_create([CacheInvalidation(stream_id=one.stream_id, cache_name="x")])


def of_a_fixture(number: int) -> Any:
    """A fact under that ID, as ``loaddata`` reads it."""
    one = CacheInvalidation(
        stream_id=number, instance_name="x", cache_name="y", keys=["k"], invalidation_ts=1, received_at=timezone.now()
    )
    (read,) = serializers.deserialize("json", serializers.serialize("json", [one]))
    return read


@pytest.mark.usefixtures("unchanged")
def test_fixtures_are_refused(one):
    """``loaddata`` would bring facts under IDs that were read as something else, or that nobody took."""
    read = of_a_fixture(one.stream_id)
    with pytest.raises(IntegrityError, match="is refused"):
        read.save()


def test_fixtures_are_read_when_asked_to(one):
    read = of_a_fixture(one.stream_id)
    with changing_facts(connection):
        read.save()
    assert CacheInvalidation.objects.filter(stream_id=one.stream_id).count() == 2


def test_every_model_of_facts_appends_in_bulk():
    for bound in registry.all_streams():
        for model in bound.models:
            assert isinstance(model._base_manager.all(), FactQuerySet), model
            assert isinstance(model._default_manager.all(), FactQuerySet), model


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
        cursor.execute("SET LOCAL streams.maintenance = on; TRUNCATE test_basket, test_paid, test_noted")
    return made_shop


@pytest.fixture(scope="module")
def made_shop(
    django_db_setup: None, django_db_blocker: Any
) -> Iterator[tuple[type[models.Model], type[Fact], type[Fact]]]:
    """A model, and facts that point to it: one that would be deleted with it, one that would be changed."""
    known = {name: dict(getattr(lookup, name)) for name in ("_streams", "_by_table")}
    storage = InMemoryStorage()

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
        noted_at = models.DateTimeField(auto_now_add=True)
        file = models.FileField(storage=storage)

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

    class Plain(Noted):
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
    for name in ("basket", "paid", "noted", "open", "proxied", "plain"):
        del apps.all_models["streams"][name]
    apps.clear_cache()


def test_cascades_are_refused(shop):
    Basket, Paid, _ = shop
    basket = Basket.objects.create()
    Paid.objects.create(word="x", basket=basket)
    for delete in (basket.delete, Basket.objects.all().delete, Basket.objects.filter(pk=basket.pk).delete):
        with pytest.raises(IntegrityError, match="DELETE is refused"):
            delete()
    assert (Basket.objects.count(), Paid.objects.count()) == (1, 1)
    empty = Basket.objects.create()
    assert empty.delete()[0] == 1


def test_keys_are_not_set_to_null(shop):
    Basket, _, Noted = shop
    basket = Basket.objects.create()
    basket.noted.create(word="x")
    for delete in (basket.delete, Basket.objects.filter(pk=basket.pk).delete):
        with pytest.raises(IntegrityError, match="UPDATE is refused"):
            delete()
    assert Noted.objects.get().basket_id == basket.pk


def test_related_managers_append_and_change_nothing(shop):
    Basket, Paid, Noted = shop
    basket, other = Basket.objects.create(), Basket.objects.create()
    basket.paid.create(word="x")
    basket.noted.create(word="x")
    paid, noted = Paid.objects.get(), Noted.objects.get()
    writes = [
        lambda: basket.paid.update(word="y"),
        lambda: basket.paid.all().delete(),
        lambda: other.paid.add(paid),
        lambda: other.noted.set([noted]),
        basket.noted.clear,
        lambda: basket.noted.clear(bulk=False),
        lambda: basket.noted.remove(Noted.objects.get()),
    ]
    for write in writes:
        with pytest.raises(IntegrityError, match="is refused"):
            write()
    assert (basket.paid.get().word, basket.noted.get().word) == ("x", "x")
    basket.paid.add(Paid(word="y"), bulk=False)
    assert sorted(basket.paid.values_list("word", flat=True)) == ["x", "y"]


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


@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize(
    "write",
    [
        lambda model, facts: [fact.save() for fact in facts],
        lambda model, facts: [model.stream.append(fact) for fact in facts],
        lambda model, facts: model.stream.append(*facts),
        lambda model, facts: model.objects.bulk_create(facts),
        lambda model, facts: model.stream.reserve(len(facts)).__enter__().write(*facts),
    ],
    ids=["save", "append of one", "append of several", "bulk_create", "reserve"],
)
def test_values_that_django_makes_when_it_saves_are_made(shop, write, proxied):
    """Also for a proxy of the class, whose table it has."""
    Noted = shop[2]
    model = apps.get_model("streams", "Plain") if proxied else Noted
    before = timezone.now()
    with transaction.atomic():
        write(model, [model(word=word, file=ContentFile(word, name=f"{word}.txt")) for word in ("one", "two")])
    stored = list(Noted.objects.order_by("stream_id"))
    assert [fact.file.read() for fact in stored] == [b"one", b"two"]
    assert all(before <= fact.noted_at <= timezone.now() for fact in stored)


@pytest.mark.parametrize("count", [1, 2])
def test_an_expression_is_refused(shop, count):
    Noted = shop[2]
    with pytest.raises(UnusableFact, match=r"Noted\.word was given an expression"):
        Noted.objects.bulk_create([Noted(word=Lower(Value("X"))) for _ in range(count)])


def test_errors_and_texts_speak_of_the_class(shop):
    Basket, _, Noted = shop
    fact = Noted(word="x", basket=Basket.objects.create())
    assert str(fact) == "Noted (not appended)"
    Noted.stream.append(fact)
    assert str(fact) == str(Noted.objects.get()) == f"Noted {fact.stream_id}"


def test_the_check_warns_of_both(shop):
    found = {(warning.obj.__name__, warning.id) for warning in check_facts(None)}
    managers = {("Open", "streams.W013"), ("Proxied", "streams.W013")}  # a proxy may bring a manager of its own
    assert found == {("Paid", "streams.W012"), ("Noted", "streams.W012"), *managers}


def test_the_check_warns_of_a_fact_without_a_stream(shop):
    """Somebody forgot the decorator."""

    class Forgotten(Fact):
        class Meta:
            app_label = "streams"

    try:
        assert [(found.id, found.obj) for found in check_facts(None) if found.id == "streams.W022"] == [
            ("streams.W022", Forgotten)
        ]
    finally:
        del apps.all_models["streams"]["forgotten"]
        apps.clear_cache()


def test_the_shipped_models_pass():
    made_here = {"Paid", "Noted", "Open", "Proxied"}
    assert [warning for warning in check_facts(None) if warning.obj.__name__ not in made_here] == []
