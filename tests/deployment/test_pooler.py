"""A real PgBouncer in transaction mode before the database: what may go through it, and what says that it must not."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest

from pipeline.connections import connect
from streams.jobs.errors import UnusableArguments
from tests.conftest import end_processes
from tests.deployment.conftest import PASSWORD, Production
from tests.deployment.followed import Followed
from tests.deployment.places import do_the_whole_work, program
from tests.support.ports import free_ports
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import ready_ports

PGBOUNCER = program("pgbouncer")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer here: Debian's package pgbouncer")
#: Fewer sessions than clients: two transactions of one client seldom meet the same one.
SESSIONS = 3
_CONFIGURATION = """
[databases]
{name} = host={host} port={port} dbname={name}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {sessions}
server_round_robin = 1
max_client_conn = 300
"""


@pytest.fixture
def pooler(site: Production, tmp_path: Path) -> Iterator[str]:
    """The URL of the site's database by way of a pooler."""
    (port,) = free_ports(1)
    url = urlsplit(site.url())
    values = {"name": site.name, "host": site.host, "port": site.port, "own": port, "folder": tmp_path}
    (tmp_path / "pgbouncer.ini").write_text(_CONFIGURATION.format(**values, sessions=SESSIONS))
    (tmp_path / "users").write_text(f'"{url.username}" "{PASSWORD}"\n')
    assert PGBOUNCER is not None
    other = ["-u", "nobody"] if os.geteuid() == 0 else []  # it does not run as root
    command = [PGBOUNCER, *other, str(tmp_path / "pgbouncer.ini")]
    with (tmp_path / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        by_pooler = url._replace(netloc=f"{url.username}:{url.password}@127.0.0.1:{port}").geturl()
        try:
            wait_until(lambda: answers(by_pooler), what="the pooler answers")
            yield by_pooler
        finally:
            process.terminate()
            process.wait(DEADLINE_SECONDS)


def answers(url: str) -> bool:
    try:
        psycopg2.connect(url).close()
    except psycopg2.OperationalError:
        return False
    return True


def test_appends_need_no_address_of_the_server_itself(site, pooler):
    site.manage("append", "caches", "--count", "20", "--threads", "4", "--instance", "pooled", DATABASE_URL=pooler)
    with site.session() as cursor:
        cursor.execute("SELECT count(*) FROM streams_cacheinvalidation WHERE instance_name = 'pooled'")
        assert cursor.fetchone() == (20,)
        cursor.execute("SELECT given, \"position\" FROM streams_look('{caches}')")
        given, position = cursor.fetchone()
        assert given == position


def test_a_server_without_it_does_not_begin_to_serve(site, pooler):
    server = site.start("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", DATABASE_URL=pooler)
    out, _ = server.communicate(timeout=DEADLINE_SECONDS)
    assert server.returncode != 0
    assert "ready" not in out


def test_spark_says_that_it_needs_the_server_itself(site, pooler):
    with pytest.raises(UnusableArguments, match=r"pooler.*unsupported startup parameter.*REPLSITE_DATABASE_DIRECT"):
        connect(pooler, "notebook")
    connect(site.url(), "notebook").close()


def test_the_whole_work_goes_through_it(site, pooler):
    do_the_whole_work({**os.environ, "DATABASE_URL": pooler, "REPLSITE_DATABASE_DIRECT": f"{site.host}:{site.port}"})


def test_pages_that_append_through_few_sessions_lose_no_fact(site, pooler):
    env = {
        "DATABASE_URL": pooler, "REPLSITE_DATABASE_DIRECT": f"{site.host}:{site.port}",
        "DJANGO_SETTINGS_MODULE": "tests.deployment.writing_site", "REPLSITE_WRITER": "pooled",
    }  # fmt: skip
    server = site.start("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", **env)
    ports = ready_ports(server)
    http, wire = ports["http"], ports["replication"]
    follower = site.start("follow", f"tcp://127.0.0.1:{wire}", "--streams", "caches", "--json", **env)
    followed = Followed(follower)
    ready_to_follow(site)
    with ThreadPoolExecutor(24) as pool:
        tokens = list(pool.map(lambda number: append_by_page(http, number), range(300)))
    wait_until(lambda: set(tokens) <= set(followed.tokens), what="the follower has all facts")
    for writer, found in followed.of_writers.items():
        assert found == sorted(set(found)), f"{writer}: each fact once, in order"
    assert urllib.request.urlopen(f"http://127.0.0.1:{http}/health/ready", timeout=DEADLINE_SECONDS).status == 200
    assert site.manage("parked", **env).returncode == 0
    server.terminate()
    assert server.wait(DEADLINE_SECONDS) == 0
    end_processes([follower])


def ready_to_follow(site: Production) -> None:
    """Wait until the follower's row is there: it knows its positions then."""
    with site.session() as cursor:

        def is_there() -> bool:
            cursor.execute("SELECT count(*) FROM streams_reader WHERE name LIKE 'follow%'")
            return bool(cursor.fetchone()[0])

        wait_until(is_there, what="the follower is known")


def append_by_page(port: int, number: int) -> int:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/append?name=n{number}", method="POST")
    with urllib.request.urlopen(asked, timeout=DEADLINE_SECONDS) as answer:
        return int(json.load(answer)["token"])
