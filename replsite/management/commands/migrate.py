"""Runs Django's ``migrate`` under an advisory lock, so that only one process migrates a database at a time.

Two servers that are installed at the same time can then each begin with ``migrate``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management import CommandError
from django.core.management.base import OutputWrapper
from django.core.management.commands import migrate
from django.db import connections

from streams.db import driver
from streams.runtime.command_line import SiteCommand

_RETRY_SECONDS = 0.2
_HOLDER = f"SELECT a.pid {driver.LOCK_HOLDERS} LIMIT 1"


class Command(SiteCommand, migrate.Command):
    """Django's command ``migrate``, run while a further database session holds an advisory lock."""

    output = OutputWrapper  # Django's command colours what it writes, of which nothing comes from others
    examples = (
        ("migrate", "make and change tables up to this version; waits for another migrate that is at work"),
        ("migrate --check", "exit status 1 when some are not applied"),
        ("migrate events 0011", "back to an earlier version, with this program"),
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Waits until no other process migrates this database, then does what Django's command does."""
        # Without the lock: A and B look at the empty database, A creates django_migrations, B creates it too and ends with
        # a traceback. Or both carry out the same migration.
        with self._alone(options["database"], options["verbosity"]):
            super().handle(*args, **options)

    @contextmanager
    def _alone(self, using: str, verbosity: int) -> Iterator[None]:
        wrapper = connections[using]
        if wrapper.vendor != "postgresql":
            yield
            return
        wrapper.ensure_connection()  # creates the database of an embedded server
        try:
            lock = driver.direct_connection(using, application_name="replsite migrate")
        except driver.OperationalError as error:
            raise CommandError(driver.explain(error)) from error
        try:
            self._acquire(lock, verbosity)
            yield
        finally:
            lock.close()

    def _acquire(self, lock: Any, verbosity: int) -> None:
        is_announced = False
        with lock.cursor() as cursor:
            key = driver.migrate_key(cursor)
            # A statement that waits for the lock would keep its snapshot. If the holder creates an index concurrently,
            # the holder waits for that snapshot to end, and the two would wait for each other.
            while not _try_lock(cursor, key):
                if not is_announced and verbosity:
                    cursor.execute(_HOLDER, [key])
                    holder = cursor.fetchone()
                    by = f" (database session {holder[0]})" if holder and holder[0] else ""
                    self.stdout.write(f"Another migrate is at work on this database{by}; waiting for it.")
                    self.stdout.flush()
                    is_announced = True
                time.sleep(_RETRY_SECONDS)


def _try_lock(cursor: Any, key: int) -> bool:
    cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
    return bool(cursor.fetchone()[0])
