"""Many viewers and many replication connections on one server: one look at the database a second, and bounded memory.

The suite has a few dozen; ``python -m tests.support.large viewers`` a thousand of each.
"""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.request

import psutil
import pytest
from django.contrib.auth.models import User

from replsite.live_rows.shared import FRESH_SECONDS
from tests.support.cookies import session_cookie
from tests.support.viewers import Server, watch
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.wire_client import ready_ports

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.scenario]
NUMBER = int(os.environ.get("REPLSITE_TEST_VIEWERS", "40"))
SECONDS = float(os.environ.get("REPLSITE_TEST_SECONDS", "4"))


def test_many_viewers_share_one_look_a_second_and_memory_is_bounded(start_manage, capsys):
    cookie = session_cookie(User.objects.create_superuser("boss"))
    process = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")
    ports = ready_ports(process)
    server = Server(psutil.Process(process.pid), ports["http"], ports["replication"], cookie)
    found = asyncio.run(watch(server, NUMBER, NUMBER, SECONDS))
    with capsys.disabled():
        sys.stdout.write(f"\n{NUMBER} viewers and {NUMBER} connections: {found}\n")
    assert len(found.moments) <= found.seconds / FRESH_SECONDS + 2, "looks are shared"
    assert found.answers > 0, "after everybody had the whole page"
    # a snapshot tells of every connection on each of fifteen streams, and two or three snapshots are there at a time
    assert found.memory_with - found.memory_before < 50_000_000 + NUMBER * 250_000
    # from then on it does not grow: the page is the same bytes for all, and earlier snapshots are kept in brief
    assert found.memory_after - found.memory_with < 20_000_000 + NUMBER * 30_000
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/health/live", timeout=DEADLINE_SECONDS) as answer:
        assert answer.status == 200
