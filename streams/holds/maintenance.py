"""Lets blocks of the program change facts that are held, and choose their IDs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import transaction

from streams.holds.installed_sql import MAINTENANCE

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["changing_facts", "session_changing_facts"]

_CHANGE_FACTS = f"""
SELECT before, set_config('{MAINTENANCE}', 'on', true)
FROM (SELECT coalesce(current_setting('{MAINTENANCE}', true), '') AS before OFFSET 0) AS given
"""
_AS_BEFORE = f"SELECT set_config('{MAINTENANCE}', %s, true)"


@contextmanager
def changing_facts(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Lets the block change and delete facts, and choose IDs of facts that it inserts. Runs it in a transaction.

    No reader may have seen the rows, or all readers must begin again afterwards.
    """
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute(_CHANGE_FACTS)
        before = cursor.fetchone()[0]
        yield
        cursor.execute(_AS_BEFORE, [before])


@contextmanager
def session_changing_facts(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Lets the session change and delete facts during the block, outside of a transaction too. For tests."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET {MAINTENANCE} = on")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"RESET {MAINTENANCE}")
