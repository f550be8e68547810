"""Rows per second to 1, 10, 50 and 200 followers, against a bare uvloop server that writes the same bytes.

One transaction appends all facts, so that the server reads, encodes and sends as fast as it can. CPU seconds are those of the
server process alone; those of its PostgreSQL session, which writes the lines, stand beside them.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, cast

import psutil
from django.db import connection

from script.benchmarks.report import Report, median_ratio, rounds
from streams import registry
from streams.reading.rows import rows_between
from streams.replication.protocol.announcer import Read, encode_rows
from streams.writing.name import use_instance, writer_name

FOLLOWERS = (1, 10, 50, 200)
FACTS = 100_000
#: CPU seconds of the server per 10^6 lines delivered that are allowed, by number of followers.
LIMITS = {1: 1.0, 10: 0.2, 50: 0.1, 200: 0.1}
ROUNDS = 3
_INSERT = """
INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name, keys)
SELECT id, %s, 'bench', ARRAY['key ' || number] FROM unnest(%s::bigint[]) WITH ORDINALITY AS given (id, number)
"""
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


def look_for(sink: subprocess.Popen[str], mark: str) -> None:
    """Tell the sink which line is the last, and wait until it knows."""
    say(sink, mark)
    hear(sink)


def append() -> str:
    """Append all facts in one transaction; returns the beginning of the last one's line."""
    stream = registry.get("caches")
    with stream.reserve(FACTS) as reservation, connection.cursor() as cursor:
        cursor.execute(_INSERT, [writer_name(), reservation.ids])
    return f"RDATA caches {writer_name()} {reservation.ids[-1]} "


def same_bytes(path: Path) -> str:
    """Write the lines of the last append into a file; returns the beginning of the last line."""
    stream = registry.get("caches")
    with connection.cursor() as cursor:
        end = stream.table_maximum(cursor)
        rows, _ = rows_between(cursor, stream.declaration, None, end - FACTS, end, 2 * FACTS)
    name = writer_name()
    path.write_bytes(encode_rows(Read("caches", name, end - FACTS, end), rows, end).data)
    return f"RDATA caches {name} {end} "


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def broadcaster_sessions() -> set[int]:
    """The PostgreSQL processes that work for broadcasters."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'replsite broadcaster%'")
        return {pid for (pid,) in cursor.fetchall()}


class Measure:
    """One server with a number of followers; each call is a round. Keeps CPU seconds per 10^6 lines, of each process."""

    def __init__(self, port: int, followers: int, *pids: int) -> None:
        self.port, self.followers = port, followers
        self.cpu: dict[int, list[float]] = {pid: [] for pid in pids}

    def round(self, go: Callable[[subprocess.Popen[str]], None]) -> float:
        """Connect the followers, let ``go(sink)`` start the sending and tell the mark; lines delivered per second."""
        with process("-m", "script.benchmarks.sink", str(self.port), str(self.followers)) as sink:
            hear(sink)  # connected
            before = {pid: cpu_seconds(pid) for pid in self.cpu}
            go(sink)
            seconds = float(hear(sink).split()[1])
            for pid, spent in self.cpu.items():
                spent.append((cpu_seconds(pid) - before[pid]) / (FACTS * self.followers) * 1e6)
        return FACTS * self.followers / seconds

    def cpu_of(self, pid: int) -> float:
        """The median over the rounds."""
        return statistics.median(self.cpu[pid])


def main() -> None:
    """Measure both servers in turn with each number of followers."""
    use_instance("bench")
    report = Report("broadcast", "lines delivered per second; cpu: seconds per 10^6 lines")
    others = broadcaster_sessions()
    with (
        tempfile.TemporaryDirectory() as folder,
        process("manage.py", "runreplication", "--bind", "127.0.0.1:0") as server,
    ):
        port = int(hear(server).rsplit(":", 1)[1])
        (session,) = broadcaster_sessions() - others
        lines = Path(folder) / "lines"
        append()
        mark = same_bytes(lines)
        with process("-m", "script.benchmarks.bare_server", str(lines)) as bare:
            bare_port = int(hear(bare))
            for followers in FOLLOWERS:
                ours = Measure(port, followers, server.pid, session)
                peer = Measure(bare_port, followers, bare.pid)

                def go_ours(sink: subprocess.Popen[str]) -> None:
                    look_for(sink, f"RDATA caches {writer_name()} {_next_end()} ")
                    append()

                def go_peer(sink: subprocess.Popen[str]) -> None:
                    look_for(sink, mark)
                    say(bare, "go")

                result = rounds(ROUNDS, {"ours": partial(ours.round, go_ours), "peer": partial(peer.round, go_peer)})
                report.add(
                    followers=followers,
                    ours=statistics.median(result["ours"]),
                    peer=statistics.median(result["peer"]),
                    ratio=median_ratio(result["ours"], result["peer"]),
                    cpu_ours=ours.cpu_of(server.pid),
                    limit=LIMITS[followers],
                    cpu_peer=peer.cpu_of(bare.pid),
                    cpu_postgresql=ours.cpu_of(session),
                )
    report.finish()


def _next_end() -> int:
    """The ID that the last fact of the next append will have: nobody else writes here."""
    with connection.cursor() as cursor:
        return registry.get("caches").sequence_value(cursor) + FACTS
