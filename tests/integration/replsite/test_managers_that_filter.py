"""Managers of a project leave rows out (a soft delete, a tenant); the engine reads every fact all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.shop import Shop, migrated_shop

MODELS = """
from django.db import models
from streams import Fact, stream
from streams.facts import FactQuerySet


class Kept(models.Manager.from_queryset(FactQuerySet)):
    def get_queryset(self):
        return super().get_queryset().filter(hidden=False)


class OfTenant(models.Manager.from_queryset(FactQuerySet)):
    def get_queryset(self):
        raise LookupError("no tenant is chosen")


class Order(Fact):
    word = models.TextField()
    hidden = models.BooleanField()
    note = models.TextField(default="n")

    class Meta:
        abstract = True


@stream("first", key="word", fields=["word", "hidden"])
class First(Order):
    kept = Kept()


@stream("own", key="word", fields=["word", "hidden"])
class Own(Order):
    objects = Kept()


@stream("base", key="word", fields=["word", "hidden"])
class Base(Order):
    kept = Kept()

    class Meta:
        base_manager_name = "kept"


@stream("tenant", key="word", fields=["word", "hidden"])
class Tenant(Order):
    objects = OfTenant()
"""
RULES = """
import django; django.setup()
from django.db import transaction
from shop.models import Base, First, Own, Tenant
from streams import VersionConflict
from streams.follow import Begin, Handler, Reader

for model in (First, Own, Base, Tenant):
    name = model.stream.name
    ids = []
    for number in range(9):
        ids += model.stream.append(word="a", hidden=number % 3 == 0, note=str(number))
    notes = [str(number) for number in range(9)]
    model.stream.wait_for(ids[-1])
    seen, each = [], []
    options = {"begin": Begin.OLDEST}
    Reader(name, (Handler(name, name, lambda chunk: seen.extend(chunk.instances), **options),)).catch_up()
    assert [fact.note for fact in seen] == notes, (name, len(seen))
    Reader(f"{name}-each", (Handler(name, f"{name}-each", lambda one: each.append(one.note), each=True, **options),)).catch_up()
    assert each == notes, (name, each)
    for page in (model.stream.read(), model.stream.read(key="a")):
        assert [fact.note for fact in page.facts] == notes, name
    assert [fact.note for fact in model.stream.read(newest=True).facts] == notes[::-1], name
    try:
        with transaction.atomic():
            model.stream.append(word="a", hidden=True, note="9")
            model.stream.append(word="a", hidden=True, note="10", expected=ids[-1])
    except VersionConflict:
        pass
    else:
        raise AssertionError(name)
    for one in seen:
        one.refresh_from_db()
    made = model.stream.fact({"@version": 1, "word": "a", "hidden": True}, token=ids[0])
    assert (made.note, made.pk) == ("0", seen[0].pk), name
print("ok")
"""


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    with migrated_shop(tmp_path, database_url, "filtered", {"shop/models.py": MODELS}) as made:
        made.run("-m", "django", "makemigrations", "--check", "shop")
        yield made


def test_every_fact_is_read_whatever_managers_leave_out(shop: Shop) -> None:
    """A handler was given 6 instances of 9 facts, and its position passed over the others."""
    assert shop.run("-c", RULES).split()[-1] == "ok"
