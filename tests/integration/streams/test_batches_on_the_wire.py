"""Batches of several writers of one stream reach a client one after another, whatever else is said meanwhile."""

from __future__ import annotations

import pytest

from tests.support.waiting import DEADLINE_SECONDS
from tests.support.wire_client import WireClient, positioned, start_replication

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS, FACTS, ROWS = 2, 60, 5
#: A writer process: facts of several rows each, as fast as it can.
WRITE = f"""
from streams import registry
from streams.catalog.models import CacheInvalidation
stream = registry.get("caches")
for number in range({FACTS}):
    with stream.reserve(1) as reservation:
        for row in range({ROWS}):
            fact = CacheInvalidation(cache_name=str(number), keys=[str(row)])
            fact.stream_id = reservation.ids[0]
            reservation.write(fact)
"""


def start_writers(start_manage):
    return [start_manage("shell", "-c", WRITE, env={"REPLSITE_WRITER": f"writer{number}"}) for number in range(WRITERS)]


def batches(lines: list[str]) -> list[list[list[str]]]:
    """Lines of the stream, cut after each that ends a batch."""
    found: list[list[list[str]]] = [[]]
    for line in lines:
        if line.startswith(("RDATA caches ", "POSITION caches ")):
            found[-1].append(line.split(" ", 4))
            if line.startswith("RDATA") and found[-1][-1][3] != "batch":
                found.append([])
    return found


def test_batches_of_two_writers_never_interleave(start_manage):
    port = start_replication(start_manage)
    with positioned(port) as client, WireClient(port, "NAME noisy") as noisy:
        processes = start_writers(start_manage)
        while len([line for line in client.of("RDATA caches") if " batch " not in line]) < WRITERS * FACTS:
            noisy.say("REPLICATE\nREMOTE_SERVER_UP in.between")
            seen = len(client.lines)
            client.read_until(lambda line, seen=seen: len(client.lines) > seen)
        assert [process.wait(DEADLINE_SECONDS) for process in processes] == [0] * WRITERS
    whole = [batch for batch in batches(client.lines) if any(line[0] == "RDATA" for line in batch)]
    assert len(whole) == WRITERS * FACTS
    for batch in whole:
        rows = batch[-ROWS:]
        assert [line[3] for line in rows[:-1]] == ["batch"] * (ROWS - 1)
        assert len({line[2] for line in rows}) == 1
        assert {line[0] for line in batch[:-ROWS]} <= {"POSITION"}
