"""The handlers of the pipeline's named readers. There is one, which writes per-user feeds.

``manage.py runhandlers`` runs them.
"""

from __future__ import annotations

from django.db import connections

from events.declarations import EVENTS
from events.sync.feeds import FEEDS
from pipeline.feeds.write import StreamRange, write_feeds
from streams.conf import stream_settings
from streams.follow import Chunk, View, handles
from streams.follow.cursors import read_cursor

__all__ = ["keep_feeds"]


@handles(EVENTS.name, reader=FEEDS, view=View.LINEAR, chunk_rows=2_000)
def keep_feeds(chunk: Chunk) -> None:
    """Writes a chunk of events into the feeds of the users concerned, in the transaction that moves the reader's cursor."""
    settings = stream_settings()
    with connections[settings.database].cursor() as cursor:
        stored = read_cursor(cursor, FEEDS, EVENTS.name)
        # The range begins where the cursor is, not at the first row: positions without events in between belong to the
        # range.
        low = stored[0].base if stored is not None else chunk.rows[0].token - 1
        write_feeds(cursor, StreamRange(low, chunk.rows[-1].token), settings.server_name, settings.feed_entries)
