"""``examples/follow.mjs``, a client in another language, against a real server: no fact is missed, whatever is killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import playwright
import pytest

from streams.catalog.models import CacheInvalidation
from streams.homeserver.typing import set_typing
from tests.conftest import end_processes
from tests.support.ports import free_port
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import ready_ports
from tests.support.writing import stream

NODE = shutil.which("node") or str(Path(playwright.__file__).parent / "driver" / "node")
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        subprocess.run([NODE, "--version"], capture_output=True, check=False).returncode != 0,
        reason="no Node.js runs here (Debian: apt-get install nodejs, or libatomic1 for Playwright's)",
    ),
]


def fact(name: str, keys: tuple[str, ...] = ("k",)) -> CacheInvalidation:
    return CacheInvalidation(cache_name=name, keys=list(keys))


def append(*facts: CacheInvalidation) -> None:
    stream().append(*facts)


class Client:
    """The program with its file of positions; what it printed stays over its restarts."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.positions, self._out = folder / "positions.json", folder / "out.jsonl"
        self._command = [
            NODE, PROJECT / "examples" / "follow.mjs", f"127.0.0.1:{ports['replication']}",
            f"http://127.0.0.1:{ports['http']}", self.positions, "caches", "typing",
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        with self._out.open("a") as out:
            self.process = subprocess.Popen(self._command, stdout=out, stdin=subprocess.DEVNULL, start_new_session=True)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def has_begun(self) -> bool:
        return self.positions.exists() and {"caches", "typing"} <= set(json.loads(self.positions.read_text()))

    def facts(self, stream: str) -> list[dict]:
        """Whole lines only: the last one may be half written by a killed process."""
        *lines, _ = self._out.read_text().split("\n")
        return [found for line in lines if (found := json.loads(line))["stream"] == stream]


@pytest.fixture
def server(start_manage) -> Callable[[], subprocess.Popen[str]]:
    """Starts the server, again on its ports."""
    http, replication = free_port(), free_port()

    def start() -> subprocess.Popen[str]:
        process = start_manage("serve", "--http", f"127.0.0.1:{http}", "--replication", f"127.0.0.1:{replication}")
        assert ready_ports(process) == {"http": http, "replication": replication}
        return process

    start.ports = {"http": http, "replication": replication}
    return start


@pytest.fixture
def client(server, tmp_path) -> Iterator[Client]:
    server.process = server()
    client = Client(tmp_path, server.ports)
    yield client
    client.kill()


def names(client: Client) -> list[str]:
    """The names of the facts of ``caches``, each once, in the order in which they came first."""
    return list(dict.fromkeys(name for found in client.facts("caches") for name, *_ in found["rows"]))


def stored() -> list[str]:
    return list(CacheInvalidation.objects.order_by("stream_id").values_list("cache_name", flat=True))


def test_nothing_is_missed_over_kills_of_client_and_server(client, server):
    append(fact("before it begins"))
    wait_until(client.has_begun, what="the client has positions")
    told = {"before it begins"}  # whether it comes depends on when the server announces it
    append(fact("one"))
    append(*(fact(f"of-a-batch-{n}") for n in range(30)))
    wait_until(lambda: set(stored()) - told == set(names(client)) - told, what="all facts came over the wire")

    client.kill()
    append(fact("while the client is away", keys=("k" * 20_000,)))  # also longer than a line
    client.start()
    wait_until(lambda: "while the client is away" in names(client), what="what was missed was fetched")

    end_processes([server.process])
    append(*(fact(f"while the server is away-{n}") for n in range(5_100)))  # more than one answer
    server.process = server()
    append(fact("after it"))
    wait_until(lambda: set(stored()) - told == set(names(client)) - told, what="all facts came")
    assert [name for name in names(client) if name not in told] == [name for name in stored() if name not in told]


def test_rows_longer_than_a_line_come_while_it_is_connected(client):
    wait_until(client.has_begun)
    append(fact("long", keys=("k" * 20_000,)))
    append(fact("short", keys=("\u2028 \r \u2615",)))
    wait_until(lambda: names(client)[-1:] == ["short"])
    assert names(client)[-2:] == ["long", "short"]
    (found,) = [found for found in client.facts("caches") if found["rows"][0][0] == "short"]
    assert found["rows"][0][1] == ["\u2028 \r \u2615"]


def test_streams_in_memory_are_followed_too(client):
    wait_until(client.has_begun)
    set_typing("!a:x", "@ann:x", True, timeout_seconds=60)
    wait_until(lambda: client.facts("typing"))
    assert client.facts("typing")[-1]["rows"] == [["!a:x", ["@ann:x"]]]


def test_trimmed_facts_end_it_with_a_clear_word(client, run_manage, capfd):
    wait_until(client.has_begun)
    append(*(fact(f"{n}") for n in range(20)))
    wait_until(lambda: names(client)[-1:] == ["19"])
    client.kill()
    positions = json.loads(client.positions.read_text())
    writer = max(positions["caches"], key=positions["caches"].get)
    positions["caches"] = {writer: min(fact["token"] for fact in client.facts("caches"))}
    client.positions.write_text(json.dumps(positions))
    done = run_manage("purge", "stream", "caches", "--keep", "1", "--ignore-reader", "follow.mjs")
    assert done.returncode == 0, done.stderr
    client.start()
    assert client.process.wait(DEADLINE_SECONDS) == 1
    assert "were trimmed" in capfd.readouterr().err
