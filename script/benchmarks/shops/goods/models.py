"""The tables of every shop. Without unique keys: an effect that happens twice has to be seen by counting."""

from django.db import models


class Basket(models.Model):  # noqa: DJ008
    """The row of the business."""

    order_id = models.TextField()
    amount = models.IntegerField()


class Invoice(models.Model):  # noqa: DJ008
    """The effect of one fact."""

    order_id = models.TextField()
    amount = models.IntegerField()
