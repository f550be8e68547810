"""Deletes old facts of the streams in memory, which nobody trims: what they say matters for minutes."""

from __future__ import annotations

import time

from django.db import connections

from streams import registry
from streams.catalog.declarations import FEDERATION_KEPT_SECONDS
from streams.conf import stream_settings
from streams.core.declaration import quoted

#: Seconds for which a row is kept. Of ``federation``: if it is not acknowledged.
KEEP_SECONDS = {"federation": FEDERATION_KEPT_SECONDS, "presence_federation": 300.0, "typing": 3600.0}
_FREE_EVERY_SECONDS = 30.0
_freed_at: dict[str, float] = {}


def free_old(stream_name: str) -> None:
    """Deletes the rows of a stream that are older than the stream's ``KEEP_SECONDS``.

    Runs in the caller's transaction if there is one.
    """
    table = registry.get(stream_name).declaration.tables[0]
    with connections[stream_settings().database].cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {quoted(table.name)} "
            f"WHERE {quoted(table.received_column)} < clock_timestamp() - make_interval(secs => %s)",
            [KEEP_SECONDS[stream_name]],
        )


def free_sometimes(stream_name: str) -> None:
    """Calls ``free_old``, unless this process did so in the last half minute."""
    now = time.monotonic()
    if now - _freed_at.get(stream_name, -_FREE_EVERY_SECONDS) >= _FREE_EVERY_SECONDS:
        _freed_at[stream_name] = now
        free_old(stream_name)
