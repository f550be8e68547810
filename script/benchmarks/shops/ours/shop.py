"""Facts by ``append`` in the caller's transaction; handlers by ``runhandlers``."""

from collections.abc import Sequence

from django.core.management import call_command
from django.db import transaction

from script.benchmarks.shops.goods.rows import insert_basket, insert_baskets
from script.benchmarks.shops.ours.models import Order


@transaction.atomic
def pay(order_id: str, amount: int) -> None:
    """One fact."""
    insert_basket(order_id, amount)
    Order.stream.append(order_id=order_id, amount=amount)


@transaction.atomic
def pay_many(orders: Sequence[tuple[str, int]]) -> None:
    """A backlog."""
    insert_baskets(orders)
    Order.stream.append(*(Order(order_id=order_id, amount=amount) for order_id, amount in orders))


def handle() -> None:
    """Writes invoices."""
    call_command("runhandlers", "billing")
