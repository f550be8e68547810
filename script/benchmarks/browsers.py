"""Milliseconds from commit to a browser's receipt over HTTP at 20 facts a second, with 1 and 50 browsers, by each encoder.

Counted from when ``append`` returned, to when the browsers' process has the fact in hand, over all facts and browsers. The
server is daphne with one process. Beside it the *floor*, as in ``latency``.
"""

from __future__ import annotations

import json
import socket
import statistics
import time
from contextlib import closing

from script.benchmarks.broadcast import hear, process, say
from script.benchmarks.latency import append_at_pace, floor, percentile
from script.benchmarks.report import Report
from streams.writing.name import use_instance

BROWSERS, LIMIT = (1, 50), 10.0
"""Numbers of browsers, and the largest median in milliseconds that is wanted."""
WAYS = {"events": "events/?", "durable, events": "stream/?live=sse", "durable, long polls": "stream/?live=long-poll"}
PER_SECOND, FACTS, ROUNDS = 20, 100, 3
_SERVER = ("-m", "daphne", "-b", "127.0.0.1", "-v", "0", "-p")


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        return int(found.getsockname()[1])


def wait_for(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return


def delays(port: int, query: str, browsers: int) -> list[float]:
    """Milliseconds of every fact to every browser, of one round."""
    with process("-m", "script.benchmarks.browsers_sink", str(port), query, str(browsers)) as sink:
        hear(sink)  # connected
        append_at_pace(PER_SECOND // 2, PER_SECOND)  # warm
        committed = append_at_pace(FACTS, PER_SECOND)
        say(sink, str(max(committed)))
        received = {int(number): times for number, times in json.loads(hear(sink)).items()}
    if wrong := [number for number in committed if len(received.get(number, ())) != browsers]:
        raise RuntimeError(f"{len(wrong)} facts did not come to all {browsers} browsers once: {wrong[:5]}")
    return [(at - committed[number]) * 1000 for number in committed for at in received[number]]


def main() -> None:
    """Measure each encoder with each number of browsers; figures are medians over the rounds."""
    use_instance("bench")
    report = Report("browsers", "milliseconds from commit to a browser")
    port = free_port()
    with process(*_SERVER, str(port), "script.benchmarks.browsers_served:application"):
        wait_for(port)
        append_at_pace(PER_SECOND, PER_SECOND)
        for browsers in BROWSERS:
            for way, query in WAYS.items():
                measured = [(delays(port, query, browsers), floor()) for _ in range(ROUNDS)]
                figures = {
                    name: statistics.median(percentile(values, share) for values, _ in measured)
                    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
                }
                below = statistics.median(percentile(values, 0.5) for _, values in measured)
                report.add(
                    way=way, browsers=browsers, **figures, limit=LIMIT, of_limit=figures["p50"] / LIMIT, floor=below
                )
    report.finish()
