"""Several processes: writers in four, three replication servers, followers on each; and what idle processes see."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.models import StreamPosition
from tests.conftest import end_processes
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, positioned, start_replication
from tests.support.writing import linear

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.cold_start]
WRITERS = 4
FACTS = 120

#: One of several writing processes, driven by lines: ``append`` appends a fact and says its ID;
#: ``wait N`` says that this process saw the linear position reach N; ``rollback`` appends and gives up.
_PROCESS = """
import sys
from django.conf import settings
settings.REPLSITE_HEARTBEAT_SECONDS = 600
from django.db import transaction
from streams import registry
from streams.writing.name import use_instance
from streams.catalog.models import CacheInvalidation
use_instance(NAME)
stream = registry.get("caches")
append = lambda: stream.append(CacheInvalidation(cache_name="c", keys=None))
append()
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "append":
        number = append()[0]
        print("appended", number, flush=True)
    elif word == "wait":
        stream.wait_for(int(rest[0]), 60)
        print("seen", rest[0], flush=True)
    elif word == "rollback":
        try:
            with transaction.atomic():
                append()
                raise RuntimeError
        except RuntimeError:
            print("rolledback", flush=True)
"""


class Process:
    """A writing process that is driven by lines. Now and then, when it would look by itself at the table, is far away."""

    def __init__(self, start_manage: Any, name: str) -> None:
        self.process = start_manage("shell", "-v", "0", "-c", f"NAME = {name!r}\n" + _PROCESS, stdin=subprocess.PIPE)

    def say(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def read(self, word: str) -> list[str]:
        line = self.process.stdout.readline().split()
        assert line[:1] == [word], line
        return line[1:]


@pytest.fixture
def idle(start_manage) -> list[Process]:
    """Four writing processes with nothing to do."""
    processes = [Process(start_manage, f"web-{number}") for number in range(1, WRITERS + 1)]
    for process in processes:
        process.read("ready")
    return processes


def test_linear_position_reaches_the_head_on_every_process(idle):
    """One writes, all others are idle. How soon it is there is measured in ``script/benchmarks/latency.py``.

    Half of the facts come after an ID that was rolled back. In the end the idle ones rolled back last.
    """
    head = CacheInvalidation.objects.order_by("-stream_id").values_list("stream_id", flat=True)[0]
    for number in range(4 * WRITERS):
        wait_until(lambda reached=head: linear() >= reached)
        writer, gap = idle[number % WRITERS], number >= 2 * WRITERS
        if gap:
            roll_back(writer)
        for other in idle:
            if other is not writer:
                other.say(f"wait {head + 1 + gap}")
        writer.say("append")
        head = int(writer.read("appended")[0])
        writer.say(f"wait {head}")
        for process in idle:
            assert process.read("seen") == [str(head)]
    for process in idle[1:]:
        roll_back(process)
    idle[0].say("append")
    head = int(idle[0].read("appended")[0])
    for process in idle:
        process.say(f"wait {head}")
        assert process.read("seen") == [str(head)]


def roll_back(process: Process) -> None:
    process.say("rollback")
    process.read("rolledback")


# --- four writers, three servers, followers on each -------------------------------------------------------------------


@pytest.fixture
def servers(start_manage) -> list[int]:
    """Ports of three replication servers, none of which writes."""
    return [start_replication(start_manage) for _ in range(3)]


@pytest.fixture
def followers(servers, start_manage, tmp_path: Path) -> Iterator[list[tuple[str, Path]]]:
    """One per writer and one linear follower on each server, from the beginning; their views, and where their output is."""
    outputs: list[tuple[str, Path]] = []
    processes: list[subprocess.Popen[str]] = []
    for number, port in enumerate(servers):
        for view in ("writer", "linear"):
            output = tmp_path / f"{view}-{number}"
            arguments = ["--streams", "caches", "--from", "caches=1", "--view", view, "--json", "--name", output.name]
            with output.open("w") as file:
                processes.append(start_manage("follow", f"tcp://127.0.0.1:{port}", *arguments, stdout=file))
            outputs.append((view, output))
    yield outputs
    end_processes(processes)


def followed(output: Path) -> list[tuple[str, int]]:
    """What was printed: (writer, ID)."""
    rows = (json.loads(line) for line in output.read_text().splitlines(keepends=True) if line.endswith("\n"))
    return [(row["instance"], row["token"]) for row in rows]


@pytest.mark.scenario
def test_every_follower_of_every_server_gets_every_fact_of_every_writer_once(servers, followers, start_manage):
    arguments = ["append", "caches", "--count", str(FACTS), "--batch", "3", "--threads", "2"]
    writers = [start_manage(*arguments, "--instance", f"web-{number}") for number in range(1, WRITERS + 1)]
    assert [process.wait(2 * DEADLINE_SECONDS) for process in writers] == [0] * WRITERS
    facts = list(CacheInvalidation.objects.order_by("stream_id").values_list("instance_name", "stream_id"))
    assert len(facts) == WRITERS * FACTS
    for view, output in followers:
        wait_until(lambda output=output: len(followed(output)) >= len(facts), what=output.name)
        got = followed(output)
        assert sorted(got, key=lambda fact: fact[1]) == facts, "nothing is missing, nothing is twice"
        for writer in {name for name, _ in facts}:
            of_writer = [number for name, number in got if name == writer]
            assert of_writer == sorted(of_writer), "in order per writer"
        if view == "linear":
            assert got == facts, "and over all writers"


def test_any_server_answers_for_every_stream_and_writer(servers, idle):
    """Of writers in other processes, too, and of the ones that join later."""
    joined = {f"web-{number}" for number in range(1, WRITERS + 1)}
    wait_until(lambda: set(StreamPosition.objects.values_list("instance_name", flat=True)) >= joined)
    for port in servers:
        with positioned(port) as client:
            wait_until(lambda client=client: joined <= told(client, "caches"))
            assert {line.split()[1] for line in client.of("POSITION")} == set(registry.announced())


def told(client: WireClient, stream: str) -> set[str]:
    """Writers of the stream that the server named so far."""
    client.say("REPLICATE")
    client.read_until(lambda line: line.startswith(f"POSITION {stream}"))
    client._read(0)
    return {line.split()[2] for line in client.of("POSITION", stream)}


def test_no_fact_goes_through_a_channel_layer():
    """The site has none, and no module of ours asks for one."""
    from django.conf import settings

    assert not getattr(settings, "CHANNEL_LAYERS", {})
    rooms = [Path(__file__).parents[2] / room for room in ("streams", "events", "state", "pipeline", "replsite")]
    asking = [
        path for room in rooms for path in room.rglob("*.py") if re.search(r"channel_layer(?!_alias)", path.read_text())
    ]
    assert asking == []
