"""The task: a plain function on Django's connection."""

from procrastinate.contrib.django import app

from script.benchmarks.shops.goods.rows import insert_invoice
from script.benchmarks.shops.marks import in_transaction


@app.task
def write_invoice(order_id: str, amount: int) -> None:
    """One job."""
    insert_invoice(order_id, amount)
    in_transaction([order_id])
