"""The reader: one fact a transaction, or a chunk."""

import os

from script.benchmarks.shops.goods.rows import insert_invoice, insert_invoices
from script.benchmarks.shops.marks import in_transaction
from script.benchmarks.shops.ours.models import Order
from streams import handles
from streams.follow import Begin, Chunk

if os.environ["SHOP_ROWS"] == "1":

    @handles(Order, reader="billing", each=True, begin=Begin.OLDEST)
    def write_invoice(order: Order) -> None:
        """One fact."""
        insert_invoice(order.order_id, order.amount)
        in_transaction([order.order_id])

else:

    @handles(Order, reader="billing", chunk_rows=int(os.environ["SHOP_ROWS"]), begin=Begin.OLDEST)
    def write_invoices(chunk: Chunk) -> None:
        """Many facts."""
        rows = [followed.row for followed in chunk.rows]
        insert_invoices([(row["order_id"], row["amount"]) for row in rows])
        in_transaction([row["order_id"] for row in rows])
