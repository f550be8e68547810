"""The commands of ``docs/how-to/back-up-and-restore.md`` with a real server: dump, recovery to a moment, fail-over."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from django.test import override_settings
from django.utils import timezone

from replsite.live_rows.storage import read_storage
from streams import epochs, registry
from streams.db import sequences
from streams.errors import EpochChanged
from streams.maintenance import check
from tests.deployment.conftest import Production, made_by_the_page
from tests.deployment.copied import BACKUP, PAGE, STANDBY, Copy, line, remove_older_wal
from tests.deployment.places import FILES, do_the_whole_work, postgres_program
from tests.support.waiting import wait_until
from tests.support.writing import append, session

WAL = "/var/lib/postgresql/wal"


# --- a dump -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario
def test_a_dump_goes_back_with_its_rights_and_begins_a_new_epoch(site, server, tmp_path):
    site.manage("append", "caches", "--count", "5")
    with site.session() as cursor:
        old = epochs.current_epoch(cursor)
    dump = str(tmp_path / "replsite.dump")
    words = [{"replsite.dump": dump}.get(word, word) for word in line("pg_dump ")[1:-1]]
    subprocess.run([postgres_program("pg_dump"), *words, site.url("replsite_owner")], check=True)
    with made_by_the_page(server, "_restored", code=None) as restored:
        # the roles are this process's own: a real machine has them under the same names
        text = subprocess.run(
            [postgres_program("pg_restore"), "-f", "-", dump], check=True, capture_output=True, text=True
        )
        restored.load(text.stdout.replace(site.name, restored.name))
        assert restored.manage("check_streams").returncode == 0
        with restored.session() as cursor, pytest.raises(EpochChanged, match="recreated"):
            epochs.check_epoch(cursor, old, "Reader r")
        with restored.session("replsite_reader") as cursor:
            cursor.execute("SELECT max(position) FROM streams_streamposition")
            with pytest.raises(psycopg2.Error):
                cursor.execute("SELECT * FROM auth_user")


def test_a_dump_can_be_made_while_an_import_has_its_tables(site, tmp_path):
    """Those are the site's own; the dump is made by the owner of the others."""
    words = [{"replsite.dump": str(tmp_path / "dump")}.get(word, word) for word in line("pg_dump ")[1:-1]]
    with site.session() as cursor:
        cursor.execute("CREATE TABLE staging_of_a_test (id int)")
        try:
            command = [postgres_program("pg_dump"), *words, site.url("replsite_owner")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            cursor.execute("DROP TABLE staging_of_a_test")
    assert done.returncode == 0, done.stderr


def test_the_roles_may_be_there_already(site):
    """A dump is put back beside roles that are: the file is run once more."""
    roles = (FILES / "postgresql" / "roles.sql").read_text()
    with site.session("replsite_owner") as cursor:
        cursor.execute("SELECT count(*) FROM pg_roles WHERE rolname LIKE %s", [f"{site.name}%"])
        before = cursor.fetchone()
    made = roles.partition("CREATE DATABASE")[0].replace("replsite", site.name)
    site.load(made)
    with site.session("replsite_owner") as cursor:
        cursor.execute("SELECT count(*) FROM pg_roles WHERE rolname LIKE %s", [f"{site.name}%"])
        assert cursor.fetchone() == before


def test_a_dump_without_its_sequences_is_found_and_mended(site):
    """What ``check_streams`` and ``check_streams --repair`` do, as the site's role."""
    site.manage("append", "caches", "--count", "5")
    with site.session("replsite_owner") as cursor:
        cursor.execute("SELECT setval('streams_cacheinvalidation_seq', 1)")
    with site.session() as cursor:
        caches = registry.get("caches")
        assert "caches" in [found.stream for found in check.inspect_streams(cursor) if not found.well]
        check.repair(cursor, caches)
        assert all(found.well for found in check.inspect_streams(cursor))


@pytest.fixture
def moved(site: Production, server: dict[str, Any], tmp_path: Path) -> Iterator[Production]:
    """The site in another database, with all rows, and with every sequence as it began: as logical replication leaves it."""
    site.manage("append", "caches", "--count", "5")
    site.manage("jobs", "queue", "check streams")
    dump, parts = tmp_path / "dump", tmp_path / "parts"
    subprocess.run([postgres_program("pg_dump"), "-Fc", "-f", dump, site.url("replsite_owner")], check=True)
    listed = subprocess.run([postgres_program("pg_restore"), "-l", dump], check=True, capture_output=True, text=True)
    parts.write_text("".join(line for line in listed.stdout.splitlines(True) if "SEQUENCE SET" not in line))
    with made_by_the_page(server, "_moved", code=None) as other:
        restored = subprocess.run(
            [postgres_program("pg_restore"), "-f", "-", "-L", parts, dump], check=True, capture_output=True, text=True
        )
        other.load(restored.stdout.replace(site.name, other.name))
        yield other


@pytest.mark.scenario
def test_a_site_that_was_moved_without_its_sequences_works_as_a_whole_after_a_repair(moved):
    """All of them: those of streams, and those that number the rows of tables."""
    found = moved.manage("check_streams", "--json", check=False)
    assert found.returncode == 1 and "pkey" not in found.stderr, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    tables = {one["table"] for one in lines if one.get("table") and one["verdict"] != "ok"}
    assert {"django_migrations", "auth_permission", "pipeline_job", "streams_epoch"} <= tables
    health = moved.manage("health", check=False)
    assert health.returncode == 1 and "check_streams --repair" in health.stdout + health.stderr
    moved.manage("check_streams", "--repair")
    moved.manage("health")
    moved.manage("append", "events", "--count", "3")
    moved.manage("jobs", "queue", "check streams")
    moved.manage("runjobs", "--once")
    do_the_whole_work(moved.environment())


def test_a_schema_without_rows_gives_the_first_fact_an_id_that_readers_get(site, server):
    schema = subprocess.run(
        [postgres_program("pg_dump"), "--schema-only", site.url("replsite_owner")],
        check=True,
        capture_output=True,
        text=True,
    )
    with made_by_the_page(server, "_schema", code=None) as other:
        other.load(schema.stdout.replace(site.name, other.name))
        numbers = "SELECT number, stream, sequence::text, backward FROM streams_held ORDER BY 1"
        with site.session() as cursor, other.session() as its:
            cursor.execute(numbers)
            before = cursor.fetchall()
            assert "--repair mends them" in other.manage("check_streams", check=False).stderr
            other.manage("check_streams", "--repair", role="replsite_owner")
            its.execute(numbers)
            assert its.fetchall() == before  # the triggers that came with the tables have these numbers
        other.manage("check_streams")
        other.manage("append", "caches", "--count", "1")
        with other.session() as cursor:
            assert highest(cursor) == 2


def test_the_sites_role_says_who_mends_a_sequence_and_its_owner_does(site):
    with site.session("replsite_owner") as cursor:
        cursor.execute("ALTER SEQUENCE streams_cacheinvalidation_seq CACHE 50")
    done = site.manage("check_streams", "--repair", check=False)
    assert done.returncode == 1
    assert "belongs to another role. Run as its owner" in done.stderr
    site.manage("check_streams", "--repair", role="replsite_owner")
    site.manage("check_streams")


def test_the_sites_role_moves_a_sequence_whose_start_it_cannot_mend(site):
    with site.session("replsite_owner") as cursor:
        cursor.execute(
            "ALTER SEQUENCE streams_groupchange_seq START WITH 1; SELECT setval('streams_groupchange_seq', 1, false)"
        )
    done = site.manage("check_streams", "--repair", check=False)
    assert done.returncode == 1 and "belongs to another role" in done.stderr
    with site.session() as cursor:
        (groups,) = [found for found in check.inspect_streams(cursor) if found.stream == "groups"]
    assert (groups.sequence, groups.verdict) == (1, "sequence has START WITH 1, not START WITH 2")
    site.manage("check_streams", "--repair", role="replsite_owner")


def test_the_sites_role_moves_a_sequence_however_far(site, monkeypatch):
    """It may not take the lock that a jump needs, so it takes each ID."""
    monkeypatch.setattr(sequences, "STEPS_LIMIT", 0)
    monkeypatch.setattr(sequences, "_STEPS_AT_ONCE", 7)
    with site.session() as cursor:
        at = registry.get("groups").sequence_value(cursor)
        sequences.move_forward(cursor, "streams_groupchange_seq", at + 20)
        assert registry.get("groups").sequence_value(cursor) == at + 20


# --- base backups -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, transactional_db: None) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def highest(cursor: Any) -> int:
    cursor.execute("SELECT max(stream_id) FROM streams_cacheinvalidation")
    return int(cursor.fetchone()[0])


def archive(data: Path, since: str, into: Path) -> None:
    """What the server does with each finished piece of WAL, by the command of the page's settings."""
    text = (FILES / "postgresql/90-replsite.conf").read_text()
    command = re.search(r"archive_command = '(.*)'", text)[1].replace(WAL, str(into))
    with session() as cursor:
        cursor.execute("SELECT pg_walfile_name(pg_switch_wal())")
        last = cursor.fetchone()[0]
    for segment in sorted(path.name for path in (data / "pg_wal").iterdir()):
        if len(segment) == 24 and since <= segment <= last:
            one = command.replace("%f", segment).replace("%p", str(data / "pg_wal" / segment))
            subprocess.run(["sh", "-c", one], check=True)


@contextmanager
def kept_wal() -> Iterator[None]:
    """Keep WAL until it is archived, as ``archive_mode`` does, which here is off."""
    with session() as cursor:
        cursor.execute("SELECT pg_create_physical_replication_slot('until_it_is_archived', true)")
        try:
            yield
        finally:
            cursor.execute("SELECT pg_drop_replication_slot('until_it_is_archived')")


def recovery(wal: Path, target: str) -> str:
    """The page's settings, with a named point in the place of a time."""
    text = re.search(r"```ini\n(.*?)```", PAGE, re.S)[1].replace(WAL, str(wal))
    text, found = re.subn(r"recovery_target_time = .*", f"recovery_target_name = '{target}'", text)
    assert found == 1
    return text


@pytest.mark.scenario
def test_a_recovery_to_a_moment_lacks_what_came_later_and_refuses_its_tokens(folder):
    append(3)
    with session() as cursor:
        old = epochs.current_epoch(cursor)
        kept = highest(cursor)
    with kept_wal():
        copy = Copy(folder, BACKUP)
        label = (copy.data / "backup_label").read_text()
        append(2)
        with session() as cursor:
            at_point = highest(cursor)
            cursor.execute("SELECT pg_create_restore_point('before the accident'), current_setting('data_directory')")
            data = Path(cursor.fetchone()[1])
        later = append(4)
        wal = folder / "wal"
        wal.mkdir()
        archive(data, re.search(r"file ([0-9A-F]{24})", label)[1], wal)
    (copy.data / "recovery.signal").touch()
    copy.say(recovery(wal, "before the accident"))
    copy.start()
    try:
        wait_until(lambda: not copy.ask("SELECT pg_is_in_recovery()"))
        with copy.session() as cursor:
            assert kept < highest(cursor) == at_point < later[0]
            with pytest.raises(EpochChanged, match="timeline 1 -> 2"):
                epochs.check_epoch(cursor, old, f"A token of {later[-1]}")
            assert epochs.current_epoch(cursor) != old
    finally:
        copy.stop()


def test_a_promoted_standby_keeps_the_epoch_only_if_it_is_told_that_nothing_was_lost(folder):
    append(3)
    with session() as cursor:
        old = epochs.current_epoch(cursor)
    copy = Copy(folder, STANDBY)
    copy.start()
    try:
        last = append(2)[-1]
        wait_until(lambda: copy.ask("SELECT max(stream_id) FROM streams_cacheinvalidation") == last)
        with copy.session() as cursor:
            assert epochs.current_epoch(cursor) == old, "a standby begins none"
            copy.promote()
            with override_settings(REPLSITE_FAILOVER_KEEPS_EPOCH=True):
                assert epochs.current_epoch(cursor) == old
            assert epochs.current_epoch(cursor) != old
            cursor.execute("SELECT nextval('streams_cacheinvalidation_seq')")
            assert cursor.fetchone()[0] > last, "no ID is given out twice"
    finally:
        copy.stop()


# --- standbys that are away ---------------------------------------------------------------------------------------


def standbys(copy: Copy) -> dict[str, bool]:
    with copy.primary() as cursor:
        return dict(read_storage(cursor, timezone.now()).standbys)


def slot(copy: Copy) -> tuple[Any, ...]:
    """What the page's query tells of the copy's slot."""
    with copy.primary() as cursor:
        cursor.execute(copy.statement("SELECT slot_name"))
        return next(row for row in cursor.fetchall() if row[0] == copy.slot)


def test_a_standby_that_was_away_catches_up(folder):
    copy = Copy(folder, STANDBY)
    try:
        copy.start()
        wait_until(lambda: standbys(copy)[copy.slot])
        copy.halt()
        wait_until(lambda: not standbys(copy)[copy.slot])
        last = append(3)[-1]
        with copy.primary() as cursor:
            remove_older_wal(cursor)
        assert slot(copy)[1:3] == (False, "reserved")
        copy.start()
        wait_until(lambda: copy.ask("SELECT max(stream_id) FROM streams_cacheinvalidation") == last)
        with copy.primary() as cursor:
            cursor.execute("SELECT usename FROM pg_stat_replication WHERE application_name = %s", [copy.slot])
            assert cursor.fetchall() == [(copy.role,)], "synchronous_standby_names can name it"
    finally:
        copy.stop()


def test_a_standby_that_was_away_for_too_long_does_not_fill_the_disk_and_is_made_anew(folder):
    """Its primary is a standby that was promoted, which has none at first."""
    conf = (FILES / "postgresql/90-replsite.conf").read_text()
    bound = re.search(r"^(max_slot_wal_keep_size) = \d+GB", conf, re.M)[1]
    primary = Copy(folder / "primary", STANDBY)
    try:
        primary.start()
        primary.promote()
        lost = Copy(folder / "lost", STANDBY, primary)
        with primary.session() as cursor:
            assert slot(lost)[1:3] == (False, "reserved")
            cursor.execute(f"ALTER SYSTEM SET {bound} = '1MB'")
            cursor.execute("SELECT pg_reload_conf()")
            wait_until(lambda: remove_older_wal(cursor) or slot(lost)[2] == "lost")
            assert standbys(lost) == {lost.slot: False}
            cursor.execute(f"ALTER SYSTEM RESET {bound}")
            cursor.execute("SELECT pg_reload_conf()")
            cursor.execute(lost.statement("SELECT pg_drop_replication_slot"))
        anew = Copy(folder / "anew", STANDBY, primary)
        try:
            anew.start()
            wait_until(lambda: standbys(anew) == {anew.slot: True})
        finally:
            anew.stop()
    finally:
        primary.stop()
