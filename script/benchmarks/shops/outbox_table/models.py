"""The outbox, with an index of what was not sent yet."""

from django.db import models


class Outbox(models.Model):  # noqa: DJ008
    """A fact and whether it was handled."""

    order_id = models.TextField()
    amount = models.IntegerField()
    sent_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (models.Index(fields=["id"], name="outbox_not_sent", condition=models.Q(sent_at=None)),)
