"""Handlers for streams, and the named readers that run them in a Django service.

    from streams.follow import handles

    @handles("orders", reader="billing")
    def bill(chunk):
        for order in chunk.instances:
            Invoice.objects.create(order_id=order.order_id)

``manage.py runhandlers billing`` runs all handlers of the reader ``billing``. The how-to is
``docs/how-to/follow-from-another-service.md``. Declare handlers in a module ``handlers`` of your app. This module is
imported after Django has loaded its apps.
"""

from streams.follow.asked_retries import ask_retry
from streams.follow.chunks import Chunk, FollowedFact
from streams.follow.dead_letters import drop_parked, parked_facts, retry_parked
from streams.follow.forget import forget_reader
from streams.follow.handlers import Begin, Handler, OnFailure, handlers_of, handles, readers
from streams.follow.reader import Reader
from streams.follow.reset import resync_reader
from streams.follow.resync_plan import plan_resync
from streams.replication.protocol.ordering import FollowedRow, View

__all__ = [
    "Begin",
    "Chunk",
    "FollowedFact",
    "FollowedRow",
    "Handler",
    "OnFailure",
    "Reader",
    "View",
    "ask_retry",
    "drop_parked",
    "forget_reader",
    "handlers_of",
    "handles",
    "parked_facts",
    "plan_resync",
    "readers",
    "resync_reader",
    "retry_parked",
]
