"""A follower that is far behind and only counts.

    python -m script.benchmarks.catchup_follower PORT VIEW UPTO     (a follower of the server at PORT)
    python -m script.benchmarks.catchup_follower reader VIEW UPTO   (a named reader, whose cursor is stored after every chunk)

Prints ``done SECONDS FACTS GROWTH CPU``: the time from its start to the fact UPTO, the facts that the handler was given,
by how many bytes its memory grew at most, and the CPU seconds that it took.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
django.setup()

from script.benchmarks.memory import MemoryWatch  # noqa: E402
from streams.conf import stream_settings  # noqa: E402
from streams.core.tokens import VectorToken  # noqa: E402
from streams.follow import Begin, Chunk, Handler, Reader  # noqa: E402
from streams.replication.client.follower import Follower, FollowerOptions  # noqa: E402
from streams.replication.client.table_catch_up import TableCatchUp  # noqa: E402
from streams.replication.protocol.ordering import FollowedRow, View  # noqa: E402
from streams.replication.transport.addresses import Address  # noqa: E402


class Count:
    """The handler; notes when it has seen the last fact."""

    def __init__(self, last: int) -> None:
        self.facts = 0
        self.ended = self.cpu_seconds = 0.0
        self._cpu_begun = time.process_time()
        self._last = last

    def rows(self, rows: Sequence[FollowedRow]) -> None:
        """Of a follower."""
        if self.ended:
            return
        self.facts += len(rows)
        past = next((row.token for row in reversed(rows) if row.instance == "past"), 0)
        if past >= self._last:
            self.ended = time.perf_counter()
            self.cpu_seconds = time.process_time() - self._cpu_begun

    def chunk(self, chunk: Chunk) -> None:
        """Of a reader."""
        self.rows(chunk.rows)


async def follow(port: int, view: View, upto: int, count: Count) -> None:
    """Follow until the linear position is there."""
    options = FollowerOptions(Address("127.0.0.1", port), "bench", None, ["caches"], {"caches": VectorToken(1)}, view)
    catch_up = TableCatchUp(stream_settings().database, "bench follower")

    def end_when_there() -> None:
        if follower.linear("caches") >= upto:
            follower.finish()

    follower = Follower(options, count.rows, catch_up, end_when_there)
    try:
        await follower.run()
    finally:
        await catch_up.close()


def read(view: View, count: Count) -> None:
    """Run a reader until its handler has seen the fact."""
    reader = Reader("bench", [Handler("caches", "bench", count.chunk, view=view, begin=Begin.OLDEST)])

    def stop_when_there() -> None:
        while not count.ended:
            time.sleep(0.01)
        reader.stop()

    threading.Thread(target=stop_when_there, daemon=True).start()
    reader.run()


def main() -> None:
    """Measure one of the two."""
    where, view, upto = sys.argv[1], View(sys.argv[2]), int(sys.argv[3])
    count = Count(upto)
    with MemoryWatch(os.getpid()) as memory:
        begun = time.perf_counter()
        if where == "reader":
            read(view, count)
        else:
            asyncio.run(follow(int(where), view, upto, count))
        seconds = count.ended - begun
    print(f"done {seconds} {count.facts} {memory.growth_bytes} {count.cpu_seconds}", flush=True)


if __name__ == "__main__":
    main()
