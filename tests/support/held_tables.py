"""Tables of tests' own whose appends are held, and sessions that append to them in plain SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from django.apps.registry import Apps
from django.db import connection, models
from django.db.models import Func, Value
from django.db.models.expressions import RawSQL

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration
from streams.db import driver
from streams.db.copy_in import copy_in
from streams.holds.constraint import StreamHolds
from streams.holds.look import Seen, look
from streams.sequence import StreamSequence, sequence_of

__all__ = ["ORDERS", "Order", "Session", "Sessions", "drop", "held_orders", "sessions"]

#: So that these models are none of the program's.
_APPS = Apps()
ORDERS = StreamDeclaration(
    "orders",
    (FactTable("held_order", (Column("text", ColumnKind.TEXT),), then_by="id"),),
    sequence_of("orders"),
)


class OrderTable(models.Model):
    """The table as a migration makes it."""

    stream_id = models.BigIntegerField(db_index=True)
    instance_name = models.TextField()
    received_at = models.DateTimeField(db_default=models.functions.Now())
    text = models.TextField(null=True)
    number = models.IntegerField(null=True, unique=True)

    class Meta:
        app_label = "held"
        apps = _APPS
        db_table = "held_order"
        constraints = [StreamSequence(stream="orders"), StreamHolds(stream="orders")]

    def __str__(self) -> str:
        return str(self.stream_id)


class Order(models.Model):
    """The same table as a program uses it: ID and writer are left to the table, and come back from it."""

    stream_id = models.BigIntegerField(db_default=RawSQL(f"nextval('{sequence_of('orders')}')", ()))
    instance_name = models.TextField(
        db_default=Func(
            Func(Value("streams.writer"), Value(True), function="current_setting"), Value(""), function="nullif"
        )
    )
    text = models.TextField(null=True)
    number = models.IntegerField(null=True, unique=True)

    class Meta:
        app_label = "held_program"
        apps = _APPS
        db_table = "held_order"

    def __str__(self) -> str:
        return str(self.stream_id)


class Session:
    """A session of its own, in autocommit mode."""

    def __init__(self, own: Any) -> None:
        self.connection = own
        self.cursor = own.cursor()

    def __call__(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement, if it has any."""
        self.cursor.execute(sql, values or None)
        return self.cursor.fetchall() if self.cursor.description else []

    def one(self, sql: str, *values: Any) -> Any:
        """The first value of a statement."""
        return self(sql, *values)[0][0]

    def append(self, *texts: str, returning: str = "stream_id") -> list[Any]:
        """Append to the orders, in one statement."""
        rows = ", ".join(["(%s)"] * len(texts))
        return [row[0] for row in self(f"INSERT INTO held_order (text) VALUES {rows} RETURNING {returning}", *texts)]

    def seen(self, stream: str = "orders") -> Seen:
        """A look at one stream."""
        return look(self.cursor, [stream])[stream]

    def locks(self, stream: str = "orders") -> int:
        """How many locks hold the stream, by all sessions."""
        return self.one(
            "SELECT count(*) FROM pg_locks k JOIN streams_held h ON h.number = k.classid::bigint >> 20 WHERE h.stream = %s "
            "AND k.locktype = 'advisory' AND k.objsubid = 1 AND k.mode = 'ShareLock' "
            "AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())", stream)  # fmt: skip

    def copy(self, what: str, text: str) -> None:
        """COPY … FROM STDIN."""
        copy_in(self.cursor, f"COPY {what} FROM STDIN", [text.encode()])

    def close(self) -> None:
        """End the session, as the end of its client does."""
        self.connection.close()


Sessions = Callable[[], Session]


@contextmanager
def sessions() -> Iterator[Sessions]:
    """Makes sessions that are closed at the end."""
    with ExitStack() as stack:
        yield lambda: Session(stack.enter_context(closing(driver.direct_connection(application_name="test"))))


@contextmanager
def held_orders() -> Iterator[None]:
    """The table of orders."""
    with connection.schema_editor() as editor:
        editor.create_model(OrderTable)
    try:
        yield
    finally:
        drop("held_order")


def drop(*tables: str, sequences: Collection[str] = ()) -> None:
    """Drop tables with their triggers, and forget their streams. Those of the site stay: its appends need their rows."""
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
        for sequence in sequences:
            cursor.execute(f"DROP SEQUENCE {sequence}")
        cursor.execute("DELETE FROM streams_held h WHERE NOT EXISTS (SELECT FROM pg_class WHERE oid = h.sequence)")
