"""Rows per second to 1, 10, 50 and 200 followers, against a bare uvloop server that writes the same bytes.

One transaction appends all facts, so that the server reads, encodes and sends as fast as it can. CPU seconds are those of the
server process alone; PostgreSQL's are not in it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import psutil
from django.db import connection

from script.benchmarks.report import Report, median_ratio, rounds
from streams import registry, writers
from streams.models import CacheInvalidation
from streams.readers import rows_between
from streams.replication.rounds import Read, encode_rows

FOLLOWERS = (1, 10, 50, 200)
FACTS = 20_000
ROUNDS = 3
PROJECT = Path(__file__).resolve().parents[2]


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A helper process with pipes, ended with the block."""
    running = subprocess.Popen(
        [sys.executable, *command], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield running
    finally:
        running.terminate()
        running.wait(timeout=20)
        for pipe in (running.stdin, running.stdout):
            if pipe is not None:
                pipe.close()


def say(running: subprocess.Popen[str], text: str) -> None:
    """One line to a helper."""
    pipe = cast("IO[str]", running.stdin)
    pipe.write(text + "\n")
    pipe.flush()


def hear(running: subprocess.Popen[str]) -> str:
    """One line from a helper."""
    line = cast("IO[str]", running.stdout).readline().strip()
    if not line:
        raise RuntimeError(f"{running.args} ended without a word")
    return line


def append() -> str:
    """Append all facts in one transaction; returns the beginning of the last one's line."""
    rows = [CacheInvalidation(cache_name="bench", keys=[f"key {n}"]) for n in range(FACTS)]
    ids = registry.get("caches").append(*rows)
    return f"RDATA caches {writers.current_writer().name} {ids[-1]} "


def same_bytes(path: Path) -> str:
    """Write the lines of the last append into a file; returns the beginning of the last line."""
    stream = registry.get("caches")
    with connection.cursor() as cursor:
        end = stream.table_maximum(cursor)
        rows, _ = rows_between(cursor, stream.declaration, None, end - FACTS, end, 2 * FACTS)
    name = writers.current_writer().name
    path.write_bytes(encode_rows(Read("caches", name, end - FACTS, end), rows, end).data)
    return f"RDATA caches {name} {end} "


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class Measure:
    """One server with a number of followers; each call is a round. Keeps the CPU time per 10^6 lines delivered."""

    def __init__(self, port: int, pid: int, followers: int) -> None:
        self.port, self.pid, self.followers = port, pid, followers
        self.cpu: list[float] = []

    def round(self, go) -> float:  # type: ignore[no-untyped-def]  # noqa: ANN001
        """Connect the followers, let ``go(sink)`` start the sending and tell the mark; lines delivered per second."""
        with process("-m", "script.benchmarks.sink", str(self.port), str(self.followers)) as sink:
            hear(sink)  # connected
            before = cpu_seconds(self.pid)
            go(sink)
            seconds = float(hear(sink).split()[1])
            self.cpu.append((cpu_seconds(self.pid) - before) / (FACTS * self.followers) * 1e6)
        return FACTS * self.followers / seconds


def main() -> None:
    """Measure both servers in turn with each number of followers."""
    writers.use_instance("bench-{n}")
    report = Report(
        "broadcast", "rows delivered per second", ["followers", "ours", "peer", "ratio", "cpu_ours", "cpu_peer"]
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        process("manage.py", "runreplication", "--bind", "127.0.0.1:0") as server,
    ):
        port = int(hear(server).rsplit(":", 1)[1])
        lines = Path(folder) / "lines"
        append()
        mark = same_bytes(lines)
        with process("-m", "script.benchmarks.bare_server", str(lines)) as bare:
            bare_port = int(hear(bare))
            for followers in FOLLOWERS:
                ours = Measure(port, server.pid, followers)
                peer = Measure(bare_port, bare.pid, followers)

                def go_ours(sink: subprocess.Popen[str]) -> None:
                    next_end = _next_end()
                    say(sink, f"RDATA caches {writers.current_writer().name} {next_end} ")
                    append()

                def go_peer(sink: subprocess.Popen[str]) -> None:
                    say(sink, mark)
                    say(bare, "go")

                result = rounds(
                    ROUNDS, {"ours": lambda m=ours: m.round(go_ours), "peer": lambda m=peer: m.round(go_peer)}
                )  # type: ignore[misc]
                report.add(
                    followers=followers,
                    ours=statistics.median(result["ours"]),
                    peer=statistics.median(result["peer"]),
                    ratio=median_ratio(result["ours"], result["peer"]),
                    cpu_ours=min(ours.cpu),
                    cpu_peer=min(peer.cpu),
                )
    writers.retire_all()
    report.finish()


def _next_end() -> int:
    """The ID that the last fact of the next append will have: nobody else writes here."""
    with connection.cursor() as cursor:
        return registry.get("caches").sequence_value(cursor) + FACTS
