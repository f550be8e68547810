"""The sequence of a stream through the life of its model: migrations that ``makemigrations`` writes, on a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.support.own_project import made_schema
from tests.support.session import PROJECT, python_path
from tests.support.shop_settings import SHOP_SETTINGS
from tests.support.waiting import DEADLINE_SECONDS

HEAD = "from django.db import models\nfrom streams import Fact, stream, upcast\n\n"
ORDER = """
@stream("orders")
class Order(Fact):
    order_id = models.TextField()
"""
SCHEMA = "stream_sequences"

#: One process runs a list of commands, because starting Django for each takes longer than the command.
RUNNER = """
import sys, json
import django
from django.core.management import call_command, CommandError
django.setup()
for arguments in json.loads(sys.argv[1]):
    if arguments[0] == "python":
        exec(arguments[1], {})
    else:
        as_manage = {} if arguments[0] == 'check' else {'skip_checks': False}
        call_command(*arguments, **as_manage)
    sys.stdout.flush()
"""


class Shop:
    """A project with one app."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        (folder / "shop" / "migrations").mkdir(parents=True)
        for package in ("shop", "shop/migrations"):
            (folder / package / "__init__.py").touch()
        (folder / "settings.py").write_text(SHOP_SETTINGS)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REPLSITE_WRITER")},
            "DATABASE_URL": f"{database_url}?options=-csearch_path%3D{SCHEMA}",
            "PYTHONPATH": python_path(folder, PROJECT),
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def models(self, text: str) -> None:
        (self.folder / "shop" / "models.py").write_text(HEAD + text)

    def migration(self, name: str, text: str) -> None:
        (self.folder / "shop" / "migrations" / f"{name}.py").write_text(text)

    def read(self, pattern: str) -> str:
        [found] = (self.folder / "shop" / "migrations").glob(pattern)
        return found.read_text()

    def run(self, *commands: list[str], status: int = 0) -> str:
        import json

        done = subprocess.run(
            [sys.executable, "-c", RUNNER, json.dumps(commands)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=4 * DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr if status else done.stdout

    def append(self, model: str = "Order", **values: str) -> list[str]:
        """The command that appends a fact, prints its ID, and stores its position."""
        given = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return [
            "python",
            f"from shop.models import {model} as M; print('ID', M.stream.append(M({given}))[0]); M.stream.current()",
        ]


CHECK = ["makemigrations", "--check", "--dry-run"]
MAKE = ["makemigrations", "shop", "--no-input"]
MIGRATE = ["migrate", "-v", "0"]


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    with made_schema(SCHEMA):
        yield Shop(tmp_path, database_url)


def sequences() -> dict[str, tuple[str | None, int | None]]:
    """Name -> (column that owns it, last value) of all sequences of streams in the project's schema."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT s.relname, t.relname || '.' || a.attname, pg_sequence_last_value(s.oid) FROM pg_class s
            LEFT JOIN pg_depend d ON d.objid = s.oid AND d.deptype = 'a' AND d.refclassid = 'pg_class'::regclass
            LEFT JOIN pg_class t ON t.oid = d.refobjid
            LEFT JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
            WHERE s.relkind = 'S' AND s.relnamespace = %s::regnamespace AND s.relname LIKE '%%stream_seq'
            """,
            [SCHEMA],
        )
        return {name: (owner, last) for name, owner, last in cursor.fetchall()}


def ids(said: str) -> list[int]:
    return [int(number) for number in re.findall(r"^ID (\d+)$", said, re.M)]


def test_the_life_of_a_model(shop: Shop) -> None:
    """Made, renamed, its stream renamed, deleted: the sequence goes along, and no ID is given out twice."""
    shop.models(ORDER)
    said = shop.run(
        MAKE, CHECK, ["sqlmigrate", "shop", "0001"], MIGRATE, shop.append(order_id="1"), shop.append(order_id="2")
    )
    assert 'CREATE SEQUENCE "orders_stream_seq"' in said
    assert ids(said) == [2, 3]
    assert sequences() == {"orders_stream_seq": ("shop_order.stream_id", 3)}

    # The table is renamed: the sequence has the stream's name, and stays.
    shop.models(ORDER.replace("Order", "Purchase"))
    shop.migration(
        "0002_rename",
        "from django.db import migrations\nclass Migration(migrations.Migration):\n"
        "    dependencies = [('shop', '0001_initial')]\n    operations = [migrations.RenameModel('Order', 'Purchase')]\n",
    )
    assert ids(shop.run(CHECK, MIGRATE, shop.append("Purchase", order_id="3"))) == [4]
    assert sequences() == {"orders_stream_seq": ("shop_purchase.stream_id", 4)}

    # The stream is renamed.
    shop.models(ORDER.replace("Order", "Purchase").replace('"orders"', '"purchases"'))
    assert ids(shop.run(MAKE, CHECK, MIGRATE, shop.append("Purchase", order_id="4"))) == [5]
    assert sequences() == {"purchases_stream_seq": ("shop_purchase.stream_id", 5)}

    # Back one migration and on again; then back to nothing.
    shop.run(["migrate", "shop", "0002", "-v", "0"])
    assert sequences() == {"orders_stream_seq": ("shop_purchase.stream_id", 5)}
    assert ids(shop.run(MIGRATE, shop.append("Purchase", order_id="5"))) == [6]
    shop.run(["migrate", "shop", "zero", "-v", "0"])
    assert sequences() == {}

    # Squashed: one migration that does the same. The positions of the earlier stream are still stored: it goes on after them.
    said = shop.run(
        ["squashmigrations", "shop", "0003", "--no-input", "-v", "0"],
        CHECK,
        MIGRATE,
        shop.append("Purchase", order_id="6"),
    )
    assert ids(said) == [7]
    assert sequences() == {"purchases_stream_seq": ("shop_purchase.stream_id", 7)}

    # The model is deleted.
    shop.models("")
    shop.run(MAKE, CHECK, MIGRATE)
    assert sequences() == {}


def test_a_class_with_a_key_is_renamed_and_squashed(shop: Shop) -> None:
    keyed = ORDER.replace('"orders"', '"orders", key="order_id"')
    shop.models(keyed)
    shop.run(MAKE, MIGRATE)
    shop.models(keyed.replace("Order", "Purchase"))
    shop.migration(
        "0002_rename",
        "from django.db import migrations\nclass Migration(migrations.Migration):\n"
        "    dependencies = [('shop', '0001_initial')]\n    operations = [migrations.RenameModel('Order', 'Purchase')]\n",
    )
    shop.run(CHECK, MIGRATE, ["migrate", "shop", "zero", "-v", "0"])
    squash = ["squashmigrations", "shop", "0002", "--no-input", "-v", "0"]
    assert ids(shop.run(squash, CHECK, MIGRATE, shop.append("Purchase", order_id="1"))) == [2]


HAND_WRITTEN = {
    "0001_initial": """
from django.db import migrations, models
from django.db.models.functions import Now

class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("stream_id", models.BigIntegerField(db_index=True)),
                ("instance_name", models.TextField()),
                ("received_at", models.DateTimeField(db_default=Now())),
                ("order_id", models.TextField()),
            ],
            options={"abstract": False},
        ),
    ]
""",
    "0002_sequence": """
from django.db import migrations
from streams.declare import CreateStreamSequence

class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [CreateStreamSequence("shop_order")]
""",
}


def test_a_sequence_made_by_hand_is_taken_over(shop: Shop) -> None:
    for name, text in HAND_WRITTEN.items():
        shop.migration(name, text)
    shop.models(ORDER)
    shop.run(MIGRATE)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT nextval('{SCHEMA}.shop_order_stream_seq') FROM generate_series(1, 40)")
    assert sequences() == {"shop_order_stream_seq": (None, 41)}
    assert ids(shop.run(MAKE, CHECK, MIGRATE, shop.append(order_id="1"))) == [42]
    assert sequences() == {"orders_stream_seq": ("shop_order.stream_id", 42)}
    shop.run(["migrate", "shop", "0002", "-v", "0"])
    assert sequences() == {"shop_order_stream_seq": ("shop_order.stream_id", 42)}  # what the earlier program reads
    shop.run(["migrate", "shop", "zero", "-v", "0"])
    assert sequences() == {}
    assert shop.run(MIGRATE, CHECK) and list(sequences()) == ["orders_stream_seq"]


def test_a_sequence_made_by_hand_afterwards_is_no_second_one(shop: Shop) -> None:
    shop.models(ORDER)
    shop.run(MAKE)
    shop.migration("0002_sequence", HAND_WRITTEN["0002_sequence"])
    assert ids(shop.run(MIGRATE, CHECK, shop.append(order_id="1"))) == [2]
    assert list(sequences()) == ["orders_stream_seq"]


def test_meta_of_the_class_and_of_its_parents_stays(shop: Shop) -> None:
    shop.models("""
class Dated(Fact):
    class Meta:
        abstract = True
        constraints = [models.CheckConstraint(condition=models.Q(stream_id__gt=0), name="%(class)s_positive")]
        ordering = ["stream_id"]


@stream("orders")
class Order(Dated):
    order_id = models.TextField()


@stream("Refunds-of.orders")
class Refund(Dated):
    order = models.ForeignKey("shop.Customer", models.PROTECT)

    class Meta(Dated.Meta):
        db_table = "refunds"


class Customer(models.Model):
    code = models.UUIDField(primary_key=True)
""")
    said = shop.run(
        MAKE, CHECK, MIGRATE, shop.append(order_id="1"),
        ["python", "from shop.models import Refund; print(Refund.stream.declaration.tables[0].columns)"],
    )  # fmt: skip
    assert ids(said) == [2]
    assert "order_positive" in shop.read("0001*") and "refund_positive" in shop.read("0001*")
    assert "row={'order': 'uuid'}" in shop.read("0001*")
    assert {owner for owner, _ in sequences().values()} == {"shop_order.stream_id", "refunds.stream_id"}


TOTAL = (
    ORDER.replace('"orders"', '"orders", version=2')
    + "    total = models.DecimalField(max_digits=9, decimal_places=2, db_default=0)\n"
)
UPCAST = """

@upcast(Order, 1)
def with_total(row):
    return {**row, "total": "0.00"}
"""


def test_a_row_that_changes_needs_a_version_and_an_upcast(shop: Shop) -> None:
    shop.models(ORDER)
    shop.run(MAKE, MIGRATE)
    shop.models(TOTAL.replace(", version=2", ""))
    said = shop.run(MAKE, status=1)
    assert "streams.E020" in said
    assert "version 1 of the row was another one in migration shop.0001_initial: total differ" in said
    assert "@upcast(Order, 1)" in said
    shop.models(TOTAL)
    said = shop.run(["python", "from django.core.checks import run_checks; print([one.id for one in run_checks()])"])
    assert said == "['streams.W015']\n"
    shop.models(TOTAL + UPCAST)
    said = shop.run(
        ["check", "--fail-level", "WARNING"],
        MAKE,
        CHECK,
        ["check", "--fail-level", "WARNING"],
        ["sqlmigrate", "shop", "0002"],
    )
    assert "CREATE SEQUENCE" not in said
    assert "version=2" in shop.read("0002*")


def test_a_sequence_that_is_not_there_is_found(shop: Shop) -> None:
    shop.models(ORDER)
    check = ["check", "--database", "default"]
    shop.run(MAKE, check, MIGRATE, check)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP SEQUENCE {SCHEMA}.orders_stream_seq CASCADE")
    said = shop.run(check, status=1)
    assert "streams.E021" in said
    assert "CREATE SEQUENCE orders_stream_seq START WITH 2" in said


def test_a_trigger_that_is_not_there_is_found(shop: Shop) -> None:
    shop.models(ORDER)
    check = ["check", "--database", "default", "--fail-level", "WARNING"]
    shop.run(MAKE, MIGRATE, check)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER streams_refuse ON {SCHEMA}.shop_order")
    said = shop.run(check, status=1)
    assert "streams.W021" in said
    assert "Stream 'orders': table shop_order has no trigger streams_refuse" in said


def test_two_streams_of_one_name_are_found(shop: Shop) -> None:
    shop.models(ORDER + ORDER.replace("class Order", "class Purchase"))
    said = shop.run(["check"], status=1)
    assert "streams.E019" in said
    assert "shop.Purchase declares the stream 'orders', which shop.Order declares already" in said
