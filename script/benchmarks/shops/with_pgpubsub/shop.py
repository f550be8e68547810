"""The trigger stores and sends a notification with each basket; a listener that recovers what was sent before it ran."""

from collections.abc import Sequence

from django.db import transaction
from pgpubsub.listen import listen

from script.benchmarks.shops.goods.rows import insert_basket, insert_baskets


@transaction.atomic
def pay(order_id: str, amount: int) -> None:
    """One fact."""
    insert_basket(order_id, amount)


@transaction.atomic
def pay_many(orders: Sequence[tuple[str, int]]) -> None:
    """A backlog."""
    insert_baskets(orders)


def handle() -> None:
    """Writes invoices."""
    listen(recover=True, autorestart_on_failure=False)
