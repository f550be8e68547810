"""Jobs by ``defer`` on Django's connection; one worker that listens. The job's end is a transaction after the effect's.

Ten jobs at a time: with one, the worker waits for the database between its steps, and a job takes more CPU.
"""

from collections.abc import Sequence

from django.db import transaction
from procrastinate.contrib.django import app

from script.benchmarks.shops.goods.rows import insert_basket, insert_baskets
from script.benchmarks.shops.with_procrastinate.tasks import write_invoice

CONCURRENCY = 10


@transaction.atomic
def pay(order_id: str, amount: int) -> None:
    """One fact."""
    insert_basket(order_id, amount)
    write_invoice.defer(order_id=order_id, amount=amount)


@transaction.atomic
def pay_many(orders: Sequence[tuple[str, int]]) -> None:
    """A backlog."""
    insert_baskets(orders)
    write_invoice.batch_defer(*({"order_id": order_id, "amount": amount} for order_id, amount in orders))


def handle() -> None:
    """Writes invoices."""
    with app.replace_connector(app.connector.get_worker_connector()):
        app.run_worker(concurrency=CONCURRENCY)
