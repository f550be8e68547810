"""The business row and the effect, by the same SQL in every shop, so that only the tools differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection

__all__ = ["BASKET", "INVOICE", "insert_basket", "insert_baskets", "insert_invoice", "insert_invoices"]

Order = tuple[str, int]

BASKET = "INSERT INTO goods_basket (order_id, amount) VALUES (%s, %s)"
INVOICE = "INSERT INTO goods_invoice (order_id, amount) VALUES (%s, %s)"
_MANY = "INSERT INTO {} (order_id, amount) SELECT * FROM unnest(%s::text[], %s::integer[])"


def insert_basket(order_id: str, amount: int) -> None:
    """The business row, on Django's connection."""
    _execute(BASKET, (order_id, amount))


def insert_baskets(orders: Sequence[Order]) -> None:
    """Many business rows."""
    _execute(_MANY.format("goods_basket"), [list(column) for column in zip(*orders, strict=True)])


def insert_invoice(order_id: str, amount: int) -> None:
    """The effect, on Django's connection."""
    _execute(INVOICE, (order_id, amount))


def insert_invoices(orders: Sequence[Order]) -> None:
    """Many effects."""
    _execute(_MANY.format("goods_invoice"), [list(column) for column in zip(*orders, strict=True)])


def _execute(statement: str, values: Sequence[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
