"""The stream."""

from django.db import models

from streams import Fact, stream


@stream("orders")
class Order(Fact):
    """An order was paid."""

    order_id = models.TextField()
    amount = models.IntegerField()
