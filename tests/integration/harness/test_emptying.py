"""What a test that commits leaves behind is gone for the next one."""

from __future__ import annotations

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import connection

from streams.catalog.models import CacheInvalidation
from streams.models import ReaderResync
from tests.support.emptying import delete_rows, empty_tables
from tests.support.waiting import wait_until
from tests.support.writing import append, in_thread, session, stream, waiting_sessions

pytestmark = pytest.mark.django_db(transaction=True)


ROWS = "SELECT reltuples::int FROM pg_class WHERE oid = 'streams_cacheinvalidation'::regclass"


def sequence() -> int:
    with connection.cursor() as cursor:
        return int(stream().sequence_value(cursor))


@pytest.mark.parametrize("empty", [empty_tables, delete_rows])
def test_rows_are_gone_and_content_types_stay(empty):
    append(3)
    empty()
    assert not CacheInvalidation.objects.exists() and ContentType.objects.exists()


def test_rows_that_are_committed_meanwhile_are_gone_too():
    """Of a process that was killed: its transaction may end after its last answer."""
    with session() as late:
        late.execute(
            "BEGIN; INSERT INTO streams_readerresync (reader, stream, from_entries, to_base, to_entries, resynced_by)"
            " VALUES ('late', 's', '{}', 1, '{}', 'x')"
        )
        emptying = in_thread(delete_rows)
        wait_until(waiting_sessions)
        late.execute("COMMIT")
        emptying.join()
    assert not ReaderResync.objects.exists()


def test_tables_have_no_pages():
    append(3)
    delete_rows()
    assert pages() > 0
    empty_tables()
    assert pages() == 0


def test_tables_that_were_analyzed_while_they_were_empty_are_new_again():
    """Such a table is planned as one without rows, whatever an index would find."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE streams_cacheinvalidation")
        cursor.execute(ROWS)
        assert cursor.fetchone() == (0,)
        empty_tables()
        cursor.execute(ROWS)
        assert cursor.fetchone() == (-1,)


def test_rows_of_a_table_that_was_analyzed_are_not_deleted_one_by_one():
    append()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE streams_cacheinvalidation")
        delete_rows()
        cursor.execute(ROWS)
        assert cursor.fetchone() == (-1,) and pages() == 0


def test_autovacuum_leaves_the_tables_alone():
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = 'streams_cacheinvalidation'::regclass")
        assert cursor.fetchone() == (["autovacuum_enabled=false"],)


def pages() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_size('streams_cacheinvalidation')")
        return int(cursor.fetchone()[0])


@pytest.mark.django_db
def test_a_test_that_is_rolled_back_keeps_no_lock_of_the_emptying():
    """A writer that such a test starts reads the tables on a connection of its own, and waited for the test's end."""
    assert connection.in_atomic_block
    with session() as cursor:
        cursor.execute(
            "INSERT INTO streams_readerresync (reader, stream, from_entries, to_base, to_entries, resynced_by)"
            " VALUES ('r', 's', '{}', 1, '{}', 'x')"
        )
        empty_tables()
        cursor.execute("SET lock_timeout = '10s'")
        cursor.execute("SELECT count(*) FROM streams_readerresync")
        assert cursor.fetchone() == (0,)


def test_a_sequence_that_was_moved_far_ahead_is_brought_back():
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(%s, %s)", [stream().declaration.sequence, 10**12])
    empty_tables()
    assert sequence() == 1
