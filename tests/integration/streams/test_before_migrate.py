"""Before ``migrate``, an append and a read say what to do, as commands do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.own_project import made_schema
from tests.support.shop import Shop

pytestmark = pytest.mark.django_db(transaction=True)
CALLS = """
import asyncio, traceback
import django; django.setup()
from django.db import transaction
from shop.models import Order

paid = {"order_id": "1", "status": "paid"}
calls = {
    "append": lambda: Order.stream.append(**paid),
    "append in a transaction": transaction.atomic(lambda: Order.stream.append(**paid)),
    "aappend": lambda: asyncio.run(Order.stream.aappend(**paid)),
    "create": lambda: Order.objects.create(**paid),
    "bulk_create": lambda: Order.objects.bulk_create([Order(**paid)]),
    "read": lambda: Order.stream.read(),
    "read newest": lambda: Order.stream.read(newest=True),
    "listen": lambda: Order.stream.listen(),
    "listen from a token": lambda: next(Order.stream.listen(after=0)),
}
for name, call in calls.items():
    try:
        call()
    except Exception:
        print(name, "|", traceback.format_exc().splitlines()[-1])
    else:
        print(name, "| no error")
"""


def test_each_call_names_migrate(tmp_path: Path, database_url: str) -> None:
    shop = Shop(tmp_path, f"{database_url}?options=-csearch_path%3Dunmade", {})
    shop.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    with made_schema("unmade"):
        lines = dict(line.split(" | ") for line in shop.run("-c", CALLS).splitlines())
    assert len(lines) == 9
    assert {*lines.values()} == {"The database lacks tables of this version: run manage.py migrate."}, lines
