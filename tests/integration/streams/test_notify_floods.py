"""A role with no right but CONNECT sends a gigabyte of notifications: processes stay small, and facts go on to arrive."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.integration.streams import cached_words
from tests.support.asked_process import AskedProcess, asked_process
from tests.support.forging import connect_as, reading_role
from tests.support.waiting import wait_until
from tests.support.wire_client import WireClient, positioned, ready_ports
from tests.support.writing import in_thread, session

pytestmark = pytest.mark.django_db(transaction=True)

CHANNELS = ["replsite_streams", "replsite_relay", "replsite_jobs"]
#: Payloads that look like a position, of 7.9 kB each: 0.16 GB for each channel. All go out in one transaction.
FLOOD = """
SELECT count(pg_notify(channel, 'caches liar ' || g || repeat('5', 7880)))
FROM generate_series(1, %s) g, unnest(%s::text[]) channel
"""
EACH = 20_000
MORE_BYTES = 100_000_000
#: Of the queue's eight gigabytes: what other databases may say meanwhile.
LITTLE = 0.001


def peak(process: int) -> int:
    """Most bytes of memory that the process had since ``forget_peak``."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def forget_peak(process: int) -> int:
    Path(f"/proc/{process}/clear_refs").write_text("5")
    return peak(process)


@pytest.fixture
def others(database_url: str, transactional_db: None) -> Iterator[dict[str, AskedProcess]]:
    """Processes with a cached function: one writes, too."""
    with connection.cursor() as cursor:
        cursor.execute(cached_words.TABLE)
    module = "tests.integration.streams.cached_words"
    with asked_process(module, database_url, "writes") as writes, asked_process(module, database_url, "reads") as reads:
        yield {"writes": writes, "reads": reads}
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE cached_words")


@contextmanager
def speaker() -> Iterator[Any]:
    """A session of a role that has no right on any table of ours."""
    with reading_role() as role:
        with connection.cursor() as cursor:
            cursor.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}")
        with closing(connect_as(role)) as own:
            yield own


def waiting() -> float:
    """The part of the server's queue that some listener, of any database, has not taken yet."""
    with session() as cursor:
        cursor.execute("SELECT pg_notification_queue_usage()")
        return float(cursor.fetchone()[0])


class Facts:
    """Facts of the process ``writes``, one at a time."""

    def __init__(self, others: dict[str, AskedProcess], client: WireClient) -> None:
        self._others, self._client, self._number = others, client, 0

    def one(self, reaches: Callable[[], bool] = lambda: True) -> None:
        """Wait until a fact reached the follower and, if wanted, a process that waits for it."""
        self._number += 1
        token = self._others["writes"].ask("set", "a", str(self._number))
        self._client.read_until(f"RDATA caches writes {token} ")
        if reaches():
            assert self._others["reads"].ask("wait", token, "a") == str(self._number)


@pytest.mark.scenario
def test_a_flood_of_notifications_takes_little_memory_and_facts_arrive(others, start_manage):
    server = start_manage("runreplication", "--bind", "127.0.0.1:0")
    port = ready_ports(server)["replication"]
    jobs = start_manage("runjobs")
    processes = {"server": server.pid, "jobs": jobs.pid} | {name: one.process.pid for name, one in others.items()}
    with positioned(port) as client, speaker() as stranger:
        facts = Facts(others, client)
        facts.one()
        before = waiting() + LITTLE
        sizes = {name: forget_peak(process) for name, process in processes.items()}

        def flood() -> None:
            with stranger.cursor() as cursor:
                cursor.execute(FLOOD, [EACH, CHANNELS])

        sending = in_thread(flood)
        while sending.is_alive():
            facts.one()
        facts.one()
        while waiting() > before:
            facts.one()
        grown = {name: peak(process) - sizes[name] for name, process in processes.items()}
    assert all(more < MORE_BYTES for more in grown.values()), grown


def commits(process: int) -> bool:
    """True while the session holds the lock of all commits with notifications."""
    with session() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE pid = %s AND granted AND locktype = 'object' "
            "AND classid = 'pg_database'::regclass AND objid = 0",
            [process],
        )
        return bool(cursor.fetchone()[0])


def test_facts_reach_followers_while_another_session_commits_its_notifications(others, start_manage):
    """In PostgreSQL one commit with notifications waits for another, so that notifications have the order of commits."""
    port = ready_ports(start_manage("runreplication", "--bind", "127.0.0.1:0"))["replication"]
    with positioned(port) as client, speaker() as stranger:
        facts, process, is_enough = Facts(others, client), stranger.info.backend_pid, threading.Event()
        facts.one()

        def flood() -> None:
            with stranger.cursor() as cursor:
                cursor.execute(FLOOD, [2 * EACH, CHANNELS[:1]])

        def slow_down() -> None:
            """As a slow disk would. Never for long: while it is stopped it may hold a lock that each query needs."""
            with suppress(ProcessLookupError):
                while not is_enough.is_set():
                    os.kill(process, signal.SIGSTOP)
                    time.sleep(0.05)
                    os.kill(process, signal.SIGCONT)
                    time.sleep(0.002)

        sending = in_thread(flood)
        wait_until(lambda: commits(process), what="the flood commits")
        slowing = in_thread(slow_down)
        try:
            during = [(facts.one(lambda: False), commits(process)) for _ in range(2)]
        finally:
            is_enough.set()
            slowing.join()
            sending.join()
        assert all(is_still_committing for _, is_still_committing in during), during
        facts.one()
