"""What idle connections cost a replication server: memory and CPU with 2,000 followers that only answer PING.

The limit is 200 MB for all of the server process. Memory is the resident set after every client got its greeting and
the server has been watched for a while.
"""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack

import psutil

from script.benchmarks.broadcast import cpu_seconds, hear, process
from script.benchmarks.report import Report

CONNECTIONS = 2_000
LIMIT_MB = 200.0
WATCH_SECONDS = 10.0
MEGABYTE = 1_000_000


def connect(port: int, number: int, stack: ExitStack) -> None:
    """Connect clients one by one, each greeted before the next comes; they say their name once and then nothing."""
    for client in range(number):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        connection.sendall(b"NAME idle%d\nREPLICATE \n" % client)
        greeting = connection.recv(6, socket.MSG_WAITALL)
        if greeting != b"SERVER":
            raise RuntimeError(f"client {client} was not greeted: {greeting!r}")


def main() -> None:
    """Measure a server alone, then with all connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 200
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))  # the server inherits it
    report = Report("idle", "idle connections")
    with process("manage.py", "runreplication", "--bind", "127.0.0.1:0") as server, ExitStack() as stack:
        port = int(hear(server).rsplit(":", 1)[1])
        alone = psutil.Process(server.pid).memory_info().rss
        connect(port, CONNECTIONS, stack)
        before, since = cpu_seconds(server.pid), time.monotonic()
        time.sleep(WATCH_SECONDS)
        spent = (cpu_seconds(server.pid) - before) / (time.monotonic() - since)
        now = psutil.Process(server.pid).memory_info().rss
        report.add(
            connections=CONNECTIONS,
            server_mb=now / MEGABYTE,
            limit_mb=LIMIT_MB,
            ratio=now / MEGABYTE / LIMIT_MB,
            kb_each=(now - alone) / CONNECTIONS / 1_000,
            cpu_percent=100 * spent,
        )
    report.finish()
