"""Messages by ``pgmq.send`` on Django's connection; a worker that pops them in the transaction of the effect.

It looks every 100 ms while nothing is there, as ``pgmq.read_with_poll`` does. Notifications are left out: they would update one
row for each message, on which writers wait for each other.
"""

import json
import os
import time
from collections.abc import Sequence

from django.db import connection, transaction

from script.benchmarks.shops.goods.rows import insert_basket, insert_baskets, insert_invoice, insert_invoices
from script.benchmarks.shops.marks import in_transaction

POLL_SECONDS = 0.1


def after_migrate() -> None:
    """Makes pgmq's functions and the queue."""
    from pgmq import get_embedded_install_sql  # noqa: PLC0415 - only where it is installed

    with connection.cursor() as cursor:
        cursor.execute(get_embedded_install_sql())
        cursor.execute("SELECT pgmq.create('orders')")


@transaction.atomic
def pay(order_id: str, amount: int) -> None:
    """One fact."""
    insert_basket(order_id, amount)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pgmq.send('orders', %s::jsonb)", [_message(order_id, amount)])


@transaction.atomic
def pay_many(orders: Sequence[tuple[str, int]]) -> None:
    """A backlog."""
    insert_baskets(orders)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pgmq.send_batch('orders', %s::jsonb[])", [[_message(*order) for order in orders]])


def _message(order_id: str, amount: int) -> str:
    return json.dumps({"order_id": order_id, "amount": amount})


@transaction.atomic
def poll(limit: int) -> int:
    """Writes the next invoices; the effect and the end of the message are one transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT message FROM pgmq.pop('orders', %s)", [limit])
        messages = [json.loads(message) for (message,) in cursor.fetchall()]
    orders = [(message["order_id"], message["amount"]) for message in messages]
    if len(orders) == 1:
        insert_invoice(*orders[0])
    elif orders:
        insert_invoices(orders)
    in_transaction([order_id for order_id, _ in orders])
    return len(orders)


def handle() -> None:
    """Writes invoices."""
    limit = int(os.environ["SHOP_ROWS"])
    while True:
        if not poll(limit):
            time.sleep(POLL_SECONDS)
