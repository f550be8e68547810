"""Handlers of the pipeline's named readers, run by ``manage.py runhandlers``: per-user feeds."""

from __future__ import annotations

from django.db import connections

from events.declarations import EVENTS
from events.sync.feeds import FEEDS
from pipeline.feeds.write import Stretch, write_feeds
from streams.conf import stream_settings
from streams.follow import Chunk, View, handles
from streams.follow.cursors import read_cursor

__all__ = ["keep_feeds"]


@handles(EVENTS.name, reader=FEEDS, view=View.LINEAR, chunk_rows=2_000)
def keep_feeds(chunk: Chunk) -> None:
    """List a chunk in the feeds of those whom it concerns, in the transaction that moves the reader's cursor."""
    settings = stream_settings()
    with connections[settings.database].cursor() as cursor:
        stored = read_cursor(cursor, FEEDS, EVENTS.name)
        low = stored[0].base if stored is not None else chunk.rows[0].token - 1
        write_feeds(cursor, Stretch(low, chunk.rows[-1].token), settings.server_name, settings.feed_entries)
