"""A stream that is stuck over many facts: bounded memory, and at the head again with the slow writer's announcements."""

from __future__ import annotations

import pytest

from streams import registry
from streams.core import tracker
from streams.writing import lease
from streams.writing.process import current_writer
from tests.support.waiting import wait_until
from tests.support.writing import append, session, stored, stream

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def silent():
    """A living writer that holds the stream back: its locks are held, an ID is reserved, and it says nothing."""
    with session() as cursor:
        lease.take(cursor, "silent", lease.Identity("far", 1, "x"), 1.0)
        lease.store_entry(cursor, registry.get("caches"), "silent", 1)
        cursor.execute("SELECT nextval('streams_cacheinvalidation_seq')")
        yield cursor


@pytest.fixture
def crowd(monkeypatch, silent) -> list[int]:
    """Single facts, far more than are kept."""
    monkeypatch.setattr(tracker, "KNOWN_DONE_LIMIT", 10)
    return [append()[0] for _ in range(60)]


def announce(silent, position: int) -> None:
    """As the silent writer would: stored, then notified."""
    silent.execute("UPDATE streams_streamposition SET position = %s WHERE instance_name = 'silent'", [position])
    silent.execute("SELECT pg_notify('replsite_streams', %s)", [f"caches silent {position}"])


def test_memory_is_bounded_while_it_is_stuck(crowd):
    found = current_writer().trackers["caches"]
    wait_until(lambda: stored()["master"].position == crowd[-1])
    assert len(found._known_done) <= 10
    assert found.linear < crowd[0]


def test_the_linear_position_passes_dropped_ids_with_the_next_announcement(crowd, silent):
    """The slow writer moves on by one fact: the run ends before a dropped ID. Then it is idle and claims what it heard of."""
    found = current_writer().trackers["caches"]
    its_fact = crowd[0] - 1
    announce(silent, its_fact)
    wait_until(lambda: found.linear >= its_fact)
    assert found.linear < crowd[-1]
    assert stream().current().linear < crowd[-1]
    announce(silent, crowd[-1])
    wait_until(lambda: found.linear == crowd[-1])
    assert stream().wait_for(crowd[-1]).base == crowd[-1]
