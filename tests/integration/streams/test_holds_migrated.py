"""Holds through the life of a model: migrations that ``makemigrations`` writes, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from streams.holds.look import Seen, look
from tests.integration.streams.test_stream_sequences import CHECK, MAKE, MIGRATE, SCHEMA, Shop
from tests.support.own_project import made_schema

ORDER = """
from streams.holds.constraint import StreamHolds
from streams.sequence import StreamSequence

class Order(models.Model):
    stream_id = models.BigIntegerField()
    instance_name = models.TextField()
    order_id = models.TextField()

    class Meta:
        constraints = [StreamSequence(stream="orders"), StreamHolds(stream="orders")]
"""
WITHOUT = ORDER.replace('[StreamSequence(stream="orders"), StreamHolds(stream="orders")]', "[]")
RENAMED = """from django.db import migrations
class Migration(migrations.Migration):
    dependencies = [('shop', '0001_initial')]
    operations = [migrations.RenameModel('Order', 'Purchase')]
"""


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    with made_schema(SCHEMA):
        yield Shop(tmp_path, database_url)


def seen() -> dict[str, Seen]:
    """A look at the streams of the project's schema."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {SCHEMA}")
        try:
            return look(cursor)
        finally:
            cursor.execute("RESET search_path")


def append(table: str) -> int:
    """An append in plain SQL."""
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {SCHEMA}.{table} (order_id) VALUES ('x') RETURNING stream_id")
        return cursor.fetchone()[0]


def refuses_changes(table: str) -> bool:
    """Whether facts of the table cannot be deleted."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT count(*) FROM pg_trigger WHERE tgrelid = '{SCHEMA}.{table}'::regclass AND tgname LIKE 'streams_%'"
        )
        return cursor.fetchone()[0] == 4


@pytest.mark.scenario
def test_the_life_of_a_model(shop: Shop):
    """Made, renamed, its stream renamed, deleted: an INSERT is an append all the time."""
    shop.models(ORDER)
    said = shop.run(MAKE, CHECK, ["sqlmigrate", "shop", "0001"], MIGRATE)
    assert (
        """streams_hold_table('"shop_order"', 'orders', '"orders_stream_seq"', 'stream_id', 'instance_name'""" in said
    )
    assert "streams.holds.constraint.StreamHolds(stream='orders')" in shop.read("0001*.py")
    assert append("shop_order") == 2
    assert seen() == {"orders": Seen(2, 2, {})}

    shop.models(ORDER.replace("Order(", "Purchase("))
    shop.migration("0002_rename", RENAMED)
    shop.run(CHECK, MIGRATE)
    assert append("shop_purchase") == 3

    # The stream is renamed. Its sequence goes along.
    shop.models(ORDER.replace("Order(", "Purchase(").replace('"orders"', '"purchases"'))
    shop.run(MAKE, CHECK, MIGRATE)
    assert append("shop_purchase") == 4
    assert seen() == {"purchases": Seen(4, 4, {})}

    # Back to a table without holds, and on again.
    shop.models(WITHOUT.replace("Order(", "Purchase("))
    shop.run(MAKE, CHECK, MIGRATE)
    assert not refuses_changes("shop_purchase")
    assert seen() == {}
    shop.run(["migrate", "shop", "0002", "-v", "0"])
    assert refuses_changes("shop_purchase")
    assert append("shop_purchase") == 5
    assert seen() == {"orders": Seen(5, 5, {})}

    shop.run(["migrate", "shop", "zero", "-v", "0"])
    assert seen() == {}


def test_an_existing_table_becomes_a_stream(shop: Shop):
    shop.models(WITHOUT)
    shop.run(MAKE, MIGRATE)
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {SCHEMA}.shop_order (stream_id, instance_name, order_id) VALUES (7, 'old', 'x')")
    shop.models(ORDER)
    shop.run(MAKE, CHECK, MIGRATE)
    assert append("shop_order") == 8
    assert seen() == {"orders": Seen(8, 8, {})}
