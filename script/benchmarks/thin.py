"""What a follower costs that asks for one stream while all stored ones are written: bytes to it, and CPU of the server.

The same facts are appended to every stream, first with followers that say ``REPLICATE``, then with as many that say
``REPLICATE caches``. CPU seconds are those of the server process alone. *followers 1* shows what reading the streams
costs, which is the same for both. The difference to more followers is what the followers cost.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence

from script.benchmarks.broadcast import cpu_seconds, hear, process
from script.benchmarks.report import Report
from streams import registry
from streams.load_generator import generator
from streams.writing.name import use_instance

FOLLOWERS = (1, 50, 200)
BATCH, BATCHES = 50, 10
ROUNDS = 3
WANTED = {"all": b"REPLICATE \n", "caches": b"REPLICATE caches\n"}


class Follower:
    """A connection that counts its bytes, and the first of them also notes the last token of each stream."""

    def __init__(self) -> None:
        self.bytes = 0
        self.tokens: dict[str, int] = {}

    async def run(self, port: int, hello: bytes, *, reads_tokens: bool) -> None:
        """Reads until it is cancelled."""
        reader, out = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        out.write(hello)
        try:
            while data := await (reader.readline() if reads_tokens else reader.read(2**16)):
                self.bytes += len(data)
                if reads_tokens and data.startswith(b"RDATA "):
                    _, stream, _, token, _ = data.split(b" ", 4)
                    if token != b"batch":
                        self.tokens[stream.decode()] = abs(int(token))
        finally:
            out.close()


def append_to_all() -> dict[str, int]:
    """Appends the facts to every stream; returns the last ID of each."""
    last: dict[str, int] = {}
    announced = registry.announced()
    written = [one.name for one in registry.all_streams() if one.name in announced and not one.declaration.in_memory]
    generators = {name: generator(name, 0) for name in written}
    for _ in range(BATCHES):
        for name, load in generators.items():
            last[name] = max(map(abs, load.append(BATCH)))
    return last


async def measure(port: int, server: int, hello: bytes, followers: int) -> tuple[float, float]:
    """Returns the bytes to a follower, and the CPU seconds of the server, for one load."""
    found = [Follower() for _ in range(followers)]
    tasks = [asyncio.create_task(one.run(port, hello, reads_tokens=number == 0)) for number, one in enumerate(found)]
    first = found[0]
    await until(lambda: all(one.bytes for one in found))
    await asyncio.sleep(1.0)  # the answers to REPLICATE, which the others get a moment later
    begun, cpu = [one.bytes for one in found], cpu_seconds(server)
    last = await asyncio.to_thread(append_to_all)
    wanted = {name: at for name, at in last.items() if hello == WANTED["all"] or name == "caches"}
    await until(lambda: all(first.tokens.get(name, 0) >= at for name, at in wanted.items()))
    sent = first.bytes - begun[0]
    # All get the same lines at once. What differs is their PINGs.
    await until(lambda: all(one.bytes - was >= 0.9 * sent for one, was in zip(found, begun, strict=True)))
    spent = cpu_seconds(server) - cpu
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return sent, spent


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition, two minutes at most."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - what it looks at are plain numbers
            await asyncio.sleep(0.05)


def main() -> None:
    """Measures both kinds of followers in turn with each number of them."""
    use_instance("bench")
    report = Report("thin", "kB to each follower and CPU seconds of the server, for the same facts")
    with process("manage.py", "runreplication", "--bind", "127.0.0.1:0") as server:
        port = int(hear(server).rsplit(":", 1)[1])
        asyncio.run(measure(port, server.pid, WANTED["all"], 1))  # the first load makes what later ones find
        for followers in FOLLOWERS:
            results: dict[str, list[Sequence[float]]] = {kind: [] for kind in WANTED}
            for _ in range(ROUNDS):
                for kind, hello in WANTED.items():
                    results[kind].append(asyncio.run(measure(port, server.pid, hello, followers)))
            sent, cpu = (
                {kind: statistics.median(result[part] for result in found) for kind, found in results.items()}
                for part in (0, 1)
            )
            report.add(
                followers=followers,
                kb_all=sent["all"] / 1000,
                kb_caches=sent["caches"] / 1000,
                bytes_ratio=sent["caches"] / sent["all"],
                cpu_all=cpu["all"],
                cpu_caches=cpu["caches"],
                cpu_ratio=cpu["caches"] / cpu["all"],
            )
    report.finish()
