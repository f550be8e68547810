"""The listener."""

import pgpubsub

from script.benchmarks.shops.goods.models import Basket
from script.benchmarks.shops.goods.rows import insert_invoice
from script.benchmarks.shops.marks import in_transaction
from script.benchmarks.shops.with_pgpubsub.channels import BasketPaid


@pgpubsub.post_insert_listener(BasketPaid)
def write_invoice(old: None, new: Basket) -> None:
    """One notification."""
    insert_invoice(new.order_id, new.amount)
    in_transaction([new.order_id])
