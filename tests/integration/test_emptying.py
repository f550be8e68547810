"""What a test that commits leaves behind is gone for the next one."""

from __future__ import annotations

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import connection

from streams.models import CacheInvalidation
from tests.support.emptying import empty_tables
from tests.support.writing import append, stream

pytestmark = pytest.mark.django_db(transaction=True)


def sequence() -> int:
    with connection.cursor() as cursor:
        return int(stream().sequence_value(cursor))


def test_rows_are_gone_and_content_types_stay():
    append(3)
    empty_tables()
    assert not CacheInvalidation.objects.exists() and ContentType.objects.exists()


def test_a_sequence_that_was_moved_far_ahead_is_brought_back():
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(%s, %s)", [stream().declaration.sequence, 10**12])
    empty_tables()
    assert sequence() == 1
