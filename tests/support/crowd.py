"""A crowd for the live page: many writers on many streams and many readers, as rows, with real facts on one stream.

``move`` lets everything go on by one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import connection, transaction
from django.utils import timezone

from pipeline.models import Job
from streams import registry
from streams.models import Reader, StreamPosition

__all__ = ["READERS", "STREAMS", "WRITERS", "living", "move"]

WRITERS, STREAMS, READERS = 20, 12, 50
_FACTS = 3_000


def _names() -> list[str]:
    """Twelve streams, the one that has real facts first."""
    return ["caches", *[name for name in registry.names() if name != "caches"]][:STREAMS]


@contextmanager
def living(writers: int = WRITERS, readers: int = READERS) -> Iterator[None]:
    """Twelve streams with so many writers each, so many readers of all of them, in all states, and a few jobs."""
    who = [f"web-{number}" for number in range(1, writers + 1)]
    _fill(who, readers)
    yield


@transaction.atomic  # a site that runs sees the facts together with the rows of their writers
def _fill(who: list[str], readers: int) -> None:
    writers, names, alive = len(who), _names(), timezone.now() + timedelta(hours=6)
    with connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, received_at, cache_name, keys) SELECT n, "
            "'web-' || 1 + n %% %s, clock_timestamp() - (%s - n) * interval '20 ms', 'get_user', ARRAY['@a:b'] "
            "FROM generate_series(2, %s) n",
            [writers, _FACTS, _FACTS],
        )
        for stream in registry.all_streams():
            cursor.execute("SELECT setval(%s, %s)", [stream.declaration.sequence, _FACTS])
    StreamPosition.objects.bulk_create(
        StreamPosition(stream=stream, instance_name=name, position=_FACTS - at, last_write_position=_FACTS - at, facts_written=10,
                       last_fact_at=timezone.now())
        for stream in names for at, name in enumerate(who)
    )  # fmt: skip
    Reader.objects.bulk_create(
        Reader(
            key=f"reader {at}", name=f"follower-{at:02}", kind="connection" if at % 2 else "follower", heartbeat_at=alive,
            address=f"10.0.0.{at}:5{at:03}", bytes_out=1_000 * at, bytes_in=10 * at, buffer_bytes=5_000 if at % 7 == 0 else 0,
            positions={stream: dict.fromkeys(who, _FACTS - at * 3 * (at % 4)) for stream in names},
        )
        for at in range(readers)
    )  # fmt: skip
    Job.objects.create(kind="compress", state="queued", queued_at=timezone.now(), arguments={})


def move() -> None:
    """Everybody goes on: writers write, readers read, bytes flow."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE streams_streamposition SET position = position + 7, facts_written = facts_written + 7, last_advance_at = "
            "clock_timestamp()"
        )
        cursor.execute(
            "UPDATE streams_reader SET bytes_out = bytes_out + 2000, bytes_in = bytes_in + 50, positions = (SELECT "
            "jsonb_object_agg(s.key, (SELECT jsonb_object_agg(w.key, w.value::bigint + 5) FROM jsonb_each_text(s.value) w)) "
            "FROM jsonb_each(positions) s)"
        )
        for stream in registry.all_streams():
            cursor.execute("SELECT setval(%s, nextval(%s) + 10)", [stream.declaration.sequence] * 2)
