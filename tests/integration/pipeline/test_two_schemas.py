"""Two sites in two schemas of one database, with the same names of writers: nothing of one crosses to the other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing

import pytest
from django.db import connection
from django.db.backends.postgresql.base import Database
from django.utils import timezone

from replsite.live_rows.storage import read_storage
from streams.db import driver
from streams.db.schema_mark import SCHEMA_MARK
from streams.jobs.rows import JobLock
from streams.jobs.sql import KILLED_JOBS
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.wire_client import WireClient, positioned, start_replication

pytestmark = pytest.mark.django_db(transaction=True)

SITES = ("site_north", "Site:South")
FACTS = 150


class Site:
    """One of them: what its processes are given."""

    def __init__(self, database_url: str, schema: str) -> None:
        self.schema = schema
        quoted = f'"{schema}"'.replace('"', "%22").replace(":", "%3A")
        self.environment = {"DATABASE_URL": f"{database_url}?options=-csearch_path%3D{quoted}"}

    def session(self):
        found = Database.connect(driver.dsn(), options=f'-csearch_path="{self.schema}"')
        found.autocommit = True
        return closing(found)

    def ids(self) -> list[int]:
        with self.session() as own, own.cursor() as cursor:
            cursor.execute("SELECT stream_id FROM streams_cacheinvalidation ORDER BY 1")
            return [row[0] for row in cursor.fetchall()]


@pytest.fixture
def sites(database_url, run_manage) -> Iterator[list[Site]]:
    made = [Site(database_url, schema) for schema in SITES]
    try:
        for site in made:
            with connection.cursor() as cursor:
                cursor.execute(f'CREATE SCHEMA "{site.schema}"')
            done = run_manage("migrate", "-v", "0", timeout=2 * DEADLINE_SECONDS, env=site.environment)
            assert done.returncode == 0, done.stderr
        yield made
    finally:
        for site in made:
            with connection.cursor() as cursor:
                cursor.execute(f'DROP SCHEMA IF EXISTS "{site.schema}" CASCADE')


@pytest.mark.scenario
def test_both_are_busy_and_followers_of_each_get_all_of_its_facts_and_no_other(sites, start_manage):
    """One of them is further by far, so each position of it would have the other's followers pass over facts."""
    clients: list[WireClient] = []
    try:
        for site in sites:
            clients.append(positioned(start_replication(start_manage, **site.environment)))
        with sites[0].session() as own, own.cursor() as cursor:
            cursor.execute("SELECT count(nextval('streams_cacheinvalidation_seq')) FROM generate_series(1, 5000)")
        append = ("append", "caches", "--count", str(FACTS), "--threads", "2", "--instance", "master")
        writers = [start_manage(*append, env=site.environment) for site in sites]
        for writer in writers:
            assert writer.wait(DEADLINE_SECONDS) == 0
        for site, client in zip(sites, clients, strict=True):
            ids = site.ids()
            assert len(ids) == FACTS
            client.read_until(f"RDATA caches master {ids[-1]} ")
            tokens = [int(line.split()[3]) for line in client.of("RDATA caches")]
            assert tokens == ids
            assert not [line for line in client.of("POSITION caches") if int(line.split()[4]) > ids[-1] + 10]
    finally:
        for client in clients:
            client.socket.close()


@pytest.mark.scenario
def test_lines_that_servers_relay_stay_in_their_site(sites, start_manage):
    ports = [start_replication(start_manage, **site.environment) for site in sites for _ in range(2)]
    clients = [positioned(port) for port in ports]
    try:
        clients[0].say("REMOTE_SERVER_UP north.example")
        clients[1].read_until("REMOTE_SERVER_UP north.example")
        clients[2].say("REMOTE_SERVER_UP south.example")
        clients[3].read_until("REMOTE_SERVER_UP south.example")
        for client in clients[2:]:
            client.say("REPLICATE")
            client.read_until("POSITION caches")
            assert "REMOTE_SERVER_UP north.example" not in client.lines
    finally:
        for client in clients:
            client.socket.close()


def test_the_same_names_are_free_in_each(sites):
    """Locks and channels belong to the whole database: each carries the schema."""
    with sites[0].session() as north, sites[1].session() as south, connection.cursor() as public:
        cursors = [north.cursor(), south.cursor(), public]
        kinds = (driver.reader_key, driver.recorder_key)
        for key in (*kinds, driver.trim_key, driver.channel):
            assert len({key(cursor, "master") for cursor in cursors}) == 3, key
        assert all(JobLock(own).acquire(1) for own in (north, south))
        for site, cursor in zip(sites, cursors, strict=False):
            cursor.execute(
                "INSERT INTO pipeline_job (id, kind, state, arguments) "
                "SELECT n, 'x', 'running', '{}' FROM generate_series(1, 2) AS n"
            )
            cursor.execute(KILLED_JOBS)
            assert cursor.fetchall() == [(2,)], site.schema


def test_each_measures_its_own_tables(sites):
    """Both take their figures, whatever the name of the schema is, and see no table of the other."""
    for site in sites:
        with site.session() as own, own.cursor() as cursor:
            cursor.execute("CREATE TABLE of_this_site AS SELECT FROM generate_series(1, 9000)")
            cursor.execute("ANALYZE state_stategroup, of_this_site")
            names = [table.name for table in read_storage(cursor, timezone.now()).tables]
            assert names.count("of_this_site") == 1, site.schema


def test_a_site_in_public_has_the_names_of_before():
    """Both versions meet in them while a site is upgraded."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {SCHEMA_MARK}")
        assert cursor.fetchone()[0] == ""
        digest = hashlib.blake2b(b"replsite.reader:master", digest_size=8).digest()
        assert driver.reader_key(cursor, "master") == int.from_bytes(digest, "big", signed=True)
        assert driver.channel(cursor, "replsite_streams") == "replsite_streams"


def test_the_schema_is_that_of_the_tables_whatever_else_is_on_the_path():
    """A service that has tables of its own in front of the site's is in the same site."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA own_tables")
    try:
        with closing(Database.connect(driver.dsn(), options="-csearch_path=own_tables,public")) as other:
            cursor = other.cursor()
            assert driver.schema_mark(cursor) == ""
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA own_tables")
