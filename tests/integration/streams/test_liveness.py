"""Dead writers are judged by evidence: both of their locks, never by silence alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from streams import registry
from streams.db import driver
from streams.db.clock import database_now
from streams.models import Instance, StreamPosition, WriterResolution
from streams.testing import forget_writers
from streams.writing import lease
from streams.writing.dead_writers import resolve_dead_writers, resolve_writer, retire_streams
from tests.support.waiting import wait_until
from tests.support.writing import append, ids, linear, session, stored, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)

_APPEND_AND_STAY = """
import sys, time
from django.db import transaction
from streams import registry
from streams.writing import process as writers
from streams.catalog.models import CacheInvalidation
writers.use_instance("victim")
fact = lambda: CacheInvalidation(cache_name="victim", keys=None)
first = registry.get("caches").append(fact())
with transaction.atomic():
    registry.get("caches").append(fact())
    print("open", flush=True)
    time.sleep(600)
"""


def silence(name: str) -> None:
    Instance.objects.filter(name=name).update(heartbeat_at="2020-01-01T00:00:00Z")


@pytest.fixture
def ghost() -> Iterator[Any]:
    """A session in a transaction that appended as ``dead``, whose process is gone; two IDs, one of them written."""
    with session() as entering:
        lease.take(entering, "dead", lease.Identity("far", 1, "x"), 1.0)
        lease.store_entry(entering, registry.get("caches"), "dead", 1)
    with session() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [driver.append_key(cursor, "dead")])
        cursor.execute("SELECT nextval('streams_cacheinvalidation_seq')")
        number = cursor.fetchone()[0]
        cursor.execute(
            "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) VALUES (%s, 'dead', 'x')",
            [number],
        )
        silence("dead")
        yield cursor


def test_open_transaction_is_waited_for(ghost):
    with session() as cursor:
        assert resolve_dead_writers(cursor, "test") == []
    assert not WriterResolution.objects.exists()
    assert stored()["dead"].state == "active"


def test_proven_dead_writer_is_resolved_and_its_rows_covered(ghost):
    ghost.execute("COMMIT")
    with session() as cursor:
        done = resolve_dead_writers(cursor, "test")
    number = ids()[0]
    assert [(r.writer, r.from_position, r.to_position) for r in done] == [("dead", 1, number)]
    trace = WriterResolution.objects.get()
    assert (trace.instance_name, trace.to_position, trace.resolved_by) == ("dead", number, "test")
    assert "lock free" in trace.evidence
    assert linear() == number


def test_facts_last_seen_pending_are_counted_as_resolved(ghost):
    ghost.execute("ROLLBACK")
    StreamPosition.objects.filter(instance_name="dead").update(pending_facts=3)
    with session() as cursor:
        resolve_dead_writers(cursor, "test")
    row = StreamPosition.objects.get(instance_name="dead")
    assert (row.facts_resolved, row.pending_facts) == (3, 0)


def test_resolved_writer_gets_a_new_lease_so_a_ghost_is_refused(ghost):
    before = Instance.objects.get(name="dead").lease
    ghost.execute("ROLLBACK")
    with session() as cursor:
        resolve_dead_writers(cursor, "test")
    assert Instance.objects.get(name="dead").lease == before + 1


def test_locks_are_given_back(ghost):
    ghost.execute("ROLLBACK")
    with session() as cursor, session() as other:
        resolve_writer(cursor, "dead", "test")
        other.execute("SELECT pg_try_advisory_lock(%s)", [driver.writer_key(other, "dead")])
        assert other.fetchone() == (True,)


def test_living_writer_is_never_resolved_however_silent():
    append()
    silence("master")
    with session() as cursor:
        assert resolve_dead_writers(cursor, "somebody") == []


def test_recent_heartbeat_is_not_even_looked_at(ghost, settings):
    settings.REPLSITE_HEARTBEAT_SECONDS = 100.0
    ghost.execute("ROLLBACK")
    Instance.objects.filter(name="dead").update(heartbeat_at=database_now("default"))
    with session() as cursor:
        assert resolve_dead_writers(cursor, "test") == []


def test_a_dead_writer_is_found_although_the_databases_clock_was_set_back(ghost):
    """Its last sign of life lies an hour ahead: without a look at it, linear readers wait for that hour."""
    ghost.execute("COMMIT")
    Instance.objects.filter(name="dead").update(heartbeat_at=database_now("default") + timedelta(hours=1))
    append()
    wait_until(lambda: stored()["dead"].state == "retired")
    wait_for_linear(max(ids()))


def test_stream_that_this_program_does_not_know_is_retired_where_it_is():
    StreamPosition.objects.create(stream="other-app", instance_name="dead", position=-7)
    with session() as cursor:
        assert retire_streams(cursor, "dead")[0].to_position == 7
    assert StreamPosition.objects.get().position == -7


def test_backward_stream_keeps_its_sign():
    StreamPosition.objects.create(stream="backfill", instance_name="dead", position=-7)
    Instance.objects.create(name="dead")
    with session() as cursor:
        resolve_writer(cursor, "dead", "test")
    assert StreamPosition.objects.get().position == -7
    assert (WriterResolution.objects.get().from_position, WriterResolution.objects.get().to_position) == (-7, -7)


def test_other_writers_notice_and_pass_the_dead_ones_facts_on(ghost):
    """Heartbeats of a living writer look for dead ones; what those had committed becomes visible without a new fact."""
    ghost.execute("COMMIT")
    append()
    wait_until(lambda: stored()["dead"].state == "retired")
    wait_for_linear(max(ids()))


def test_last_writer_that_is_resolved_leaves_nothing_unseen():
    append()
    forget_writers()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE streams_streamposition SET position = 1")
    with session() as cursor:  # the writer's own session may hold its locks for a moment after its connection is closed
        wait_until(lambda: resolve_writer(cursor, "master", "test"), what="the writer is retired")
    assert linear() == ids()[-1]


def test_stopped_process_is_not_taken_for_dead_and_a_killed_one_is(start_manage):
    victim = start_manage("shell", "-v", "0", "-c", _APPEND_AND_STAY)
    assert victim.stdout.readline() == "open\n"
    before = append()[0] - 2
    wait_for_linear(before)
    os.kill(victim.pid, signal.SIGSTOP)
    silence("victim")
    with session() as cursor:
        assert resolve_dead_writers(cursor, "test") == []
    assert linear() == before, "its open fact still holds the position back"
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: stored()["victim"].state == "retired")
    wait_for_linear(before + 2)
    assert ids() == [before, before + 2]
