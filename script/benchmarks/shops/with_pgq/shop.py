"""Events by ``pgq.insert_event`` on Django's connection; a worker that handles a batch in the transaction that ends it.

A batch has what was committed between two ticks, so there is no handling of single events. The worker ticks as well, every
100 ms, as PgQue does by default; PgQ has a program for this, whose CPU would be counted nowhere.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from django.db import connection, transaction

from script.benchmarks.shops.goods.rows import insert_basket, insert_baskets, insert_invoices
from script.benchmarks.shops.marks import in_transaction

TICK_SECONDS = 0.1
SQL = Path(sys.prefix) / "pgq.sql"
"""The functions, of Debian's package (script/_environment puts them there)."""


def after_migrate() -> None:
    """Makes PgQ's functions, the queue and its consumer."""
    with connection.cursor() as cursor:
        cursor.execute(SQL.read_text())
        cursor.execute("SELECT pgq.create_queue('orders')")
        cursor.execute("SELECT pgq.set_queue_config('orders', 'ticker_max_lag', '0 seconds')")
        cursor.execute("SELECT pgq.register_consumer('orders', 'billing')")


@transaction.atomic
def pay(order_id: str, amount: int) -> None:
    """One fact."""
    insert_basket(order_id, amount)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pgq.insert_event('orders', 'paid', %s)", [_event(order_id, amount)])


@transaction.atomic
def pay_many(orders: Sequence[tuple[str, int]]) -> None:
    """A backlog."""
    insert_baskets(orders)
    with connection.cursor() as cursor:
        events = [_event(*order) for order in orders]
        cursor.execute("SELECT pgq.insert_event('orders', 'paid', event) FROM unnest(%s::text[]) event", [events])


def _event(order_id: str, amount: int) -> str:
    return json.dumps({"order_id": order_id, "amount": amount})


def tick() -> None:
    """Ends a batch, if something was committed since the last one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pgq.ticker('orders')")


@transaction.atomic
def poll() -> bool:
    """Writes the invoices of the next batch; the effects and the end of the batch are one transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pgq.next_batch('orders', 'billing')")
        ((batch,),) = cursor.fetchall()
        if batch is None:
            return False
        cursor.execute("SELECT ev_data FROM pgq.get_batch_events(%s)", [batch])
        events = [json.loads(event) for (event,) in cursor.fetchall()]
        orders = [(event["order_id"], event["amount"]) for event in events]
        if orders:
            insert_invoices(orders)
        cursor.execute("SELECT pgq.finish_batch(%s)", [batch])
    in_transaction([order_id for order_id, _ in orders])
    return True


def handle() -> None:
    """Writes invoices."""
    while True:
        tick()
        while poll():
            pass
        time.sleep(TICK_SECONDS)
