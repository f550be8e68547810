"""The texts of the statements that hold a stream. What they do is tested on a server."""

from __future__ import annotations

from streams.catalog.declarations import CACHES
from streams.holds.hold import hold_sql


def test_a_stream_is_held_by_an_insert_of_nothing():
    """So whoever may append may hold, without a right to any function."""
    assert hold_sql(CACHES) == 'INSERT INTO "streams_cacheinvalidation" ("stream_id") SELECT 0 WHERE false'
