"""The usual recipe: a trigger notifies, the poller locks rows that no other poller has, and looks once a second by itself."""

import os
import select
from collections.abc import Sequence

from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.utils import timezone

from script.benchmarks.shops.goods.rows import insert_basket, insert_baskets, insert_invoice, insert_invoices
from script.benchmarks.shops.marks import in_transaction
from script.benchmarks.shops.outbox_table.models import Outbox

_TRIGGER = """
CREATE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NOTIFY outbox; RETURN NULL; END $$;
CREATE TRIGGER outbox_notify AFTER INSERT ON outbox_table_outbox FOR EACH STATEMENT EXECUTE FUNCTION outbox_notify();
"""


def after_migrate() -> None:
    """Makes the trigger: a statement of the server, not of the application."""
    with connection.cursor() as cursor:
        cursor.execute(_TRIGGER)


@transaction.atomic
def pay(order_id: str, amount: int) -> None:
    """One fact."""
    insert_basket(order_id, amount)
    Outbox.objects.create(order_id=order_id, amount=amount)


@transaction.atomic
def pay_many(orders: Sequence[tuple[str, int]]) -> None:
    """A backlog."""
    insert_baskets(orders)
    Outbox.objects.bulk_create(Outbox(order_id=order_id, amount=amount) for order_id, amount in orders)


@transaction.atomic
def poll(limit: int) -> int:
    """Writes the next invoices; the effect and the flag are one transaction."""
    waiting = Outbox.objects.select_for_update(skip_locked=True).filter(sent_at=None).order_by("id")
    rows = list(waiting[:limit])
    if len(rows) == 1:
        insert_invoice(rows[0].order_id, rows[0].amount)
        Outbox.objects.filter(pk=rows[0].pk).update(sent_at=timezone.now())
    elif rows:
        insert_invoices([(row.order_id, row.amount) for row in rows])
        Outbox.objects.filter(pk__in=[row.pk for row in rows]).update(sent_at=timezone.now())
    in_transaction([row.order_id for row in rows])
    return len(rows)


def handle() -> None:
    """Writes invoices."""
    limit = int(os.environ["SHOP_ROWS"])
    with connection.cursor() as cursor:
        cursor.execute("LISTEN outbox")
    while True:
        if not poll(limit):
            _wait(1.0)


def _wait(seconds: float) -> None:
    """Waits for a notification; forgets those that are there."""
    driver = connection.connection
    if is_psycopg3:
        for _ in driver.notifies(timeout=seconds, stop_after=1):
            pass
        return
    driver.poll()
    if not driver.notifies:
        select.select([driver], [], [], seconds)
        driver.poll()
    driver.notifies.clear()
