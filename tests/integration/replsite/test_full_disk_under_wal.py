"""The disk under the embedded server's WAL is full, so its server falls: what was acknowledged stays, and the site goes on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from django.db.backends.postgresql.base import Database

from tests.support.appending import MODULE
from tests.support.asked_process import asked_process
from tests.support.floods import status_of
from tests.support.full_disk import fill_disk, small_file_system
from tests.support.own_folder import OwnFolder, Serving
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import positioned

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OwnFolder]:
    """A data folder on a file system of 300 MB."""
    with small_file_system(tmp_path / "data", 300):
        folder = OwnFolder(tmp_path / "data")
        yield folder
        folder.close()


def rows(site: OwnFolder, sql: str) -> list[tuple]:
    """What the statement answers, on a connection of its own."""
    with closing(Database.connect(site.url())) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(sql)
        return cursor.fetchall()


def health(port: int) -> str:
    """The public sentence of ``/health/ready``, which answers 503."""
    with pytest.raises(HTTPError) as refused:
        urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=DEADLINE_SECONDS)
    assert refused.value.code == 503
    return json.loads(refused.value.read())["sentence"]


def test_what_was_acknowledged_before_and_after_a_full_disk_is_there_once_and_in_order(site):
    serving = Serving(site.serve())
    data_dir = {"REPLSITE_DATA_DIR": str(site.path)}
    with (
        asked_process(MODULE, None, "w-1", **data_dir) as writer,
        positioned(serving.replication) as follower,
    ):
        names = (f"n-{number}" for number in itertools.count())
        acknowledged: dict[str, str] = {}

        def append() -> str:
            """The error, if there was one."""
            answer = writer.ask("append", name := next(names))
            if answer.isdigit():
                acknowledged[name] = answer
            return "" if answer.isdigit() else answer

        assert [append() for _ in range(10)] == [""] * 10
        filler = fill_disk(site.path)
        while not append():
            with suppress(Database.Error):  # the server may fall at this, too
                rows(site, "SELECT pg_switch_wal()")  # the next record needs a new file
        # The server cannot recover either, and falls again at each start, until there is room.
        wait_until(lambda: site.server.log.read_text().count("due to startup process failure") >= 2)
        # The writer says what its last try to take the name again ended with.
        wait_until(lambda: f"the disk of {site.server.folder} is full" in append(), what="an append names the cause")
        wait_until(lambda: "The disk of the embedded server is full" in health(serving.http), what="and so does health")
        filler.unlink()
        wait_until(lambda: not append(), what="appends go through again")
        assert [append() for _ in range(10)] == [""] * 10
        wait_until(lambda: status_of(serving.http, "/health/ready") == 200)
        found = rows(site, "SELECT cache_name, stream_id FROM streams_cacheinvalidation ORDER BY stream_id")
        stored = {name: str(token) for name, token in found}
        assert len(stored) == len(found), "each once"
        assert stored.items() >= acknowledged.items()
        last = list(acknowledged.values())[-1]
        follower.read_until(lambda line: line.startswith("RDATA caches") and line.split()[3] == last)
        got = [line.split()[3] for line in follower.of("RDATA", "caches")]
        assert got == list(stored.values())
