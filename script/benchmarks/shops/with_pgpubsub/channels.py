"""The channel: inserts of baskets, stored until they are handled."""

from dataclasses import dataclass

from pgpubsub.channel import TriggerChannel

from script.benchmarks.shops.goods.models import Basket


@dataclass
class BasketPaid(TriggerChannel):
    """A basket was inserted."""

    model = Basket
    lock_notifications = True
