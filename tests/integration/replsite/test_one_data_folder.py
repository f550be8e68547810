"""Two sites on one data folder: they share its server and its tables, and one goes on when the other is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from streams.db import driver
from tests.support.floods import status_of
from tests.support.own_folder import OwnFolder, Serving
from tests.support.waiting import wait_until
from tests.support.wire_client import WireClient, positioned

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OwnFolder]:
    """A data folder that is empty."""
    folder = OwnFolder(tmp_path / "data")
    yield folder
    folder.close()


def append(site: OwnFolder, instance: str, count: int) -> None:
    site.run("append", "caches", "--count", str(count), "--instance", instance)


def tokens(follower: WireClient, instance: str, count: int) -> list[int]:
    """What the follower got of that writer, as soon as it is so much, and not more than that."""
    while len(follower.of("RDATA", "caches", instance)) < count:
        seen = len(follower.lines)
        follower.read_until(lambda line, seen=seen: len(follower.lines) > seen)
    return [int(line.split()[3]) for line in follower.of("RDATA", "caches", instance)]


def test_two_sites_that_start_at_the_same_instant_share_an_empty_folder(site):
    first, second = (Serving(process) for process in (site.serve(), site.serve()))
    assert len(site.servers()) == 1
    with positioned(first.replication) as one, positioned(second.replication) as other:
        append(site, "w-1", 5)
        append(site, "w-2", 5)
        for writer in ("w-1", "w-2"):
            got = tokens(one, writer, 5)
            assert got == tokens(other, writer, 5) == sorted(set(got))
    assert [status_of(each.http, "/health/ready") for each in (first, second)] == [200, 200]


def test_a_site_waits_for_tables_that_another_process_is_making(site, tmp_path):
    """It found the table of migrations, and ended, as those of streams were not complete yet."""
    site.run("migrate", "streams", "0001", "--verbosity", "0")
    log = tmp_path / "log"
    with closing(psycopg2.connect(site.url())) as other, other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [driver.migrate_key(cursor)])
        process = site.start("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", log=log)
        wait_until(lambda: "making its tables" in log.read_text())
    assert status_of(Serving(process).http, "/health/ready") == 200


@pytest.mark.scenario
def test_one_site_goes_on_when_the_one_that_started_the_server_is_killed(site):
    first = Serving(site.serve())
    second = Serving(site.serve())
    (server,) = site.servers()
    with positioned(second.replication) as follower:
        append(site, "w-1", 5)
        first.process.kill()
        first.process.wait()
        append(site, "w-1", 5)
        got = tokens(follower, "w-1", 10)
        assert got == sorted(set(got)), "each once, in order"
        assert (site.servers(), status_of(second.http, "/health/ready")) == ([server], 200)
        third = Serving(site.serve())
        with positioned(third.replication) as late:
            append(site, "w-1", 5)
            assert tokens(late, "w-1", 5) == tokens(follower, "w-1", 15)[10:]
    assert site.servers() == [server]
