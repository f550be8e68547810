"""What the snapshot says of workers, from rows on a real server."""

from __future__ import annotations

import pytest
from django.db import connection

from replsite.live_rows import workers
from replsite.live_rows.reading import read_snapshot
from replsite.live_rows.workers import CountView, WorkersView
from streams.models import UserAddress
from streams.replication.common import worker_sql

pytestmark = pytest.mark.django_db


@pytest.fixture
def cursor():
    with connection.cursor() as cursor:
        yield cursor


def connected(cursor, key, age=0.0, name="worker1"):
    worker_sql.store_connections(cursor, [{"key": key, "name": name, "address": "127.0.0.1:5", "age": age}], "here")


def sync(cursor, key, worker, *users):
    worker_sql.store_syncs(
        cursor, [{"connection": key, "worker": worker, "user": user, "device": "", "ms": 5} for user in users]
    )


def address(number=0, user="", ms=5):
    return {"user": user or f"@{number}:b", "digest": "d", "ip": f"::{number}", "device": "", "agent": "", "ms": ms}


def test_without_reports_there_is_nothing(cursor):
    assert workers.read_workers(cursor, 300.0) == WorkersView()


def test_users_are_counted_per_worker_and_once_in_total(cursor):
    connected(cursor, "a")
    connected(cursor, "b", name="worker2")
    sync(cursor, "a", "one", "@a:b", "@c:b")
    sync(cursor, "b", "two", "@a:b")
    found = workers.read_workers(cursor, 300.0)
    assert [(one.name, one.worker, one.users) for one in found.syncing] == [
        ("worker1", "one", 2),
        ("worker2", "two", 1),
    ]
    assert found.users_syncing == 2


def test_connections_without_news_are_left_out(cursor):
    connected(cursor, "a", age=400.0)
    sync(cursor, "a", "one", "@a:b")
    assert workers.read_workers(cursor, 300.0) == WorkersView()
    assert workers.read_workers(cursor, 500.0).users_syncing == 1


def test_acknowledgements_and_counts_are_told(cursor):
    worker_sql.store_acknowledgements(cursor, {"sender1": 5})
    for total in (2, 3):
        worker_sql.add_counts(cursor, [{"kind": "closed", "name": "stopping", "total": total}])
    found = workers.read_workers(cursor, 300.0)
    assert [(one.instance, one.token) for one in found.acknowledged] == [("sender1", 5)]
    assert found.counts == (CountView("closed", "stopping", 5),)
    assert found.counted("closed") == {"stopping": 5}
    assert found.counted("refused") == {}


def test_many_addresses_are_counted_so_far(cursor, monkeypatch):
    worker_sql.store_addresses(cursor, [address(n) for n in range(5)], 5)
    assert workers.read_workers(cursor, 300.0).addresses == 5
    monkeypatch.setattr(workers, "_WORKERS", workers._WORKERS.replace(f"LIMIT {workers.MOST_ADDRESSES + 1}", "LIMIT 4"))
    monkeypatch.setattr(workers, "MOST_ADDRESSES", 3)
    found = workers.read_workers(cursor, 300.0)
    assert (found.addresses, found.addresses_exact) == (3, False)


def test_the_snapshot_has_it(cursor):
    connected(cursor, "a")
    sync(cursor, "a", "one", "@a:b")
    assert read_snapshot().workers.users_syncing == 1


# --- the table itself ---------------------------------------------------------------------------------------------


def test_old_rows_are_forgotten(cursor):
    connected(cursor, "silent", age=400.0)
    connected(cursor, "fresh")
    sync(cursor, "silent", "one", "@a:b")
    sync(cursor, "fresh", "two", "@c:b")
    worker_sql.store_addresses(cursor, [address()], 1)
    assert not worker_sql.forget_old(cursor, 300.0, 3600.0)
    found = workers.read_workers(cursor, 1e9)
    assert ([one.worker for one in found.syncing], found.addresses) == (["two"], 0)


def test_new_addresses_above_the_room_are_refused_and_known_ones_are_not(cursor):
    assert worker_sql.store_addresses(cursor, [address(n) for n in range(3)], 3) == (3, 0, 0)
    assert worker_sql.store_addresses(cursor, [address(n, ms=9_000) for n in range(5)], 1) == (1, 1, 0)
    assert worker_sql.store_addresses(cursor, [address(n, ms=10_000) for n in range(5)], -2) == (0, 1, 0)
    assert sorted(UserAddress.objects.values_list("ip", "last_seen_at__second")) == [(f"::{n}", 10) for n in range(4)]
    assert worker_sql.count_addresses(cursor, 9) == 4
    assert worker_sql.count_addresses(cursor, 2) == 2


def test_of_a_user_the_latest_addresses_are_kept(cursor, monkeypatch):
    monkeypatch.setattr(worker_sql, "MOST_ADDRESSES_OF_USER", 3)
    worker_sql.store_addresses(cursor, [address(n, "@other:b") for n in range(3)], 9)
    worker_sql.store_addresses(cursor, [address(n, "@a:b", 1_000 * n) for n in range(3)], 9)
    stored = worker_sql.store_addresses(cursor, [address(n, "@a:b", 1_000 * n) for n in (5, 4)], 9)
    assert stored == (2, 0, 2)
    kept = UserAddress.objects.filter(user_id="@a:b").order_by("ip").values_list("ip", flat=True)
    assert list(kept) == ["::2", "::4", "::5"]
    assert UserAddress.objects.filter(user_id="@other:b").count() == 3


def test_more_old_addresses_than_one_call_deletes_are_announced(cursor, monkeypatch):
    monkeypatch.setattr(worker_sql, "MOST_FORGOTTEN", 3)
    worker_sql.store_addresses(cursor, [address(n) for n in range(4)], 9)
    assert worker_sql.forget_old(cursor, 300.0, 3600.0)
    assert not worker_sql.forget_old(cursor, 300.0, 3600.0)
    assert not UserAddress.objects.exists()


def test_news_of_before_the_clock_was_set_back_grow_old_from_then_on(cursor):
    connected(cursor, "a", age=-3600.0)
    sync(cursor, "a", "one", "@a:b")
    worker_sql.forget_old(cursor, 300.0, 3600.0)
    assert [one.worker for one in workers.read_workers(cursor, 300.0).syncing] == ["one"], "it may well live"
    cursor.execute("SELECT max(last_news_at) <= clock_timestamp() FROM streams_workerconnection")
    assert cursor.fetchone() == (True,)


def test_a_server_that_starts_forgets_its_earlier_life_only(cursor):
    connected(cursor, "mine")
    sync(cursor, "mine", "one", "@a:b")
    worker_sql.store_connections(cursor, [{"key": "other", "name": "w", "address": "", "age": 0.0}], "elsewhere")
    sync(cursor, "other", "two", "@c:b")
    worker_sql.forget_server(cursor, "here")
    assert [one.worker for one in workers.read_workers(cursor, 300.0).syncing] == ["two"]


def test_news_never_go_back(cursor):
    connected(cursor, "a")
    connected(cursor, "a", age=400.0, name="renamed")
    sync(cursor, "a", "one", "@a:b")
    assert workers.read_workers(cursor, 300.0).syncing[0].name == "renamed"


def test_nothing_to_write_asks_nothing(cursor, django_assert_num_queries):
    with django_assert_num_queries(0):
        worker_sql.store_syncs(cursor, [])
        worker_sql.end_syncs_elsewhere(cursor, {})
        worker_sql.forget_workers(cursor, [])
        worker_sql.forget_connections(cursor, [])
        worker_sql.add_counts(cursor, [])
