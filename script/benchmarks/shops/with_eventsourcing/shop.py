"""Events of aggregates by ``save``, with the business row in their transaction; a projection that writes invoices by SQL."""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from django.conf import settings
from eventsourcing.application import Application
from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import Tracking
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from eventsourcing.utils import get_topic

from script.benchmarks.shops.goods.rows import BASKET, INVOICE
from script.benchmarks.shops.marks import handled


class Order(Aggregate):
    """An order that was paid."""

    @event("Paid")
    def __init__(self, order_id: str, amount: int) -> None:
        self.order_id = order_id
        self.amount = amount


class Shop(Application):
    """The application."""


class WithBasket(PostgresApplicationRecorder):
    """Inserts the business rows in the transaction of the events."""

    def _insert_events(self, curs: Any, stored_events: Any, **kwargs: Any) -> None:
        for basket in kwargs["baskets"]:
            curs.execute(BASKET, basket, prepare=True)
        super()._insert_events(curs, stored_events, **kwargs)


class Invoices(PostgresTrackingRecorder):
    """Inserts an invoice in the transaction of the projection's place."""

    def write(self, order_id: str, amount: int, tracking: Tracking) -> None:
        """One effect."""
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(INVOICE, (order_id, amount), prepare=True)


class Billing(Projection[Invoices]):
    """Writes invoices."""

    topics = (get_topic(Order.Paid),)

    @singledispatchmethod
    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        """Knows no other event."""

    @process_event.register(Order.Paid)
    def _(self, domain_event: Any, tracking: Tracking) -> None:
        self.view.write(domain_event.order_id, domain_event.amount, tracking)
        handled([domain_event.order_id])


def _environment() -> None:
    database = settings.DATABASES["default"]
    os.environ.update(
        PERSISTENCE_MODULE="eventsourcing.postgres",
        POSTGRES_DBNAME=database["NAME"],
        POSTGRES_HOST=database["HOST"],
        POSTGRES_PORT=str(database["PORT"] or 5432),
        POSTGRES_USER=database["USER"],
        POSTGRES_PASSWORD=database["PASSWORD"],
        APPLICATION_RECORDER_TOPIC=get_topic(WithBasket),
    )


@cache
def _shop() -> Shop:
    _environment()
    return Shop()


def after_migrate() -> None:
    """Makes the tables of events, which both sides use."""
    _shop()


def pay(order_id: str, amount: int) -> None:
    """One fact."""
    _shop().save(Order(order_id=order_id, amount=amount), baskets=[(order_id, amount)])


def pay_many(orders: Sequence[tuple[str, int]]) -> None:
    """A backlog."""
    _shop().save(*(Order(order_id=order_id, amount=amount) for order_id, amount in orders), baskets=orders)


def handle() -> None:
    """Writes invoices."""
    _environment()
    with ProjectionRunner(application_class=Shop, projection_class=Billing, view_class=Invoices) as runner:
        runner.run_forever()
