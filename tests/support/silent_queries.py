"""A Spark query that has ended, as the site tells of it two hours later."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection
from django.utils import timezone

from replsite.snapshot.readers import ReaderRow
from replsite.snapshot.reading import read_snapshot
from streams.models import Reader
from streams.reading.reader_table import forget_readers


def silent(name: str) -> ReaderRow:
    """The query's row in a snapshot; it was heard of last two hours ago, and old rows are deleted."""
    past = timezone.now() - timedelta(hours=2)
    Reader.objects.filter(name=name).update(heartbeat_at=past, connected_at=past)
    with connection.cursor() as cursor:
        forget_readers(cursor)
    (found,) = [reader for reader in read_snapshot().readers if reader.name == name]
    return found
