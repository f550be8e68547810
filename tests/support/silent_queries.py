"""A Spark query that has ended, as the site tells of it two hours later."""

from __future__ import annotations

import io
from contextlib import suppress
from datetime import timedelta

from django.core.management import call_command
from django.db import connection
from django.test import Client, RequestFactory
from django.utils import timezone

from replsite.live_rows.readers import ReaderRow
from replsite.live_rows.reading import read_snapshot
from replsite.metrics.cluster import metrics_view
from streams.models import Reader, StoredCursor
from streams.reading.reader_table import forget_readers


def silent(name: str) -> ReaderRow:
    """The query's row in a snapshot; it was heard of last two hours ago, and old rows are deleted."""
    past = timezone.now() - timedelta(hours=2)
    Reader.objects.filter(name=name).update(heartbeat_at=past, connected_at=past)
    StoredCursor.objects.filter(reader=name).update(seen_at=past, moved_at=past)
    with connection.cursor() as cursor:
        forget_readers(cursor)
    (found,) = [reader for reader in read_snapshot().readers if reader.name == name]
    return found


def assert_told_everywhere(name: str, admin_client: Client) -> None:
    """On the live page, in metrics, by the command and in health."""
    assert name in admin_client.get("/admin/live/").content.decode()
    assert f'reader="{name}"' in metrics_view(RequestFactory().get("/metrics")).content.decode()
    out = io.StringIO()
    with suppress(SystemExit):  # its status, where something is wrong
        call_command("streams", stdout=out)
    assert name in out.getvalue()
    assert any(name in problem.subject for problem in read_snapshot().health.problems)
