"""A mirror of a made Synapse at 40 events a second: milliseconds from its commit to the rows here, and the mirror's CPU.

The server stores one event at a time in 20 rooms, every tenth of them a state event. CPU is that of the mirror's process, in
percent of a core; that of the two PostgreSQL sessions is not in it.
"""

from __future__ import annotations

import json
import time

import psutil
from django.db import connection
from django.utils import timezone

from events.format.parsing import ParsedEvent
from pipeline.models import MirroredServer
from script.benchmarks.broadcast import hear, process
from script.benchmarks.latency import percentile
from script.benchmarks.report import Report, database_url
from script.benchmarks.sampling import Sampling
from tests.support.made_rooms import MadeRoom, public_room
from tests.support.synapse_server import SERVER_NAME, TcpWire, Told, Writer, synapse_database

PER_SECOND = 40
SECONDS = 60
ROOMS = 20
LIMITS = {"p50": 300.0, "p99": 1000.0, "cpu_percent": 1.5}


def told(event: ParsedEvent) -> Told:
    """A made event as a line of a room's file."""
    about = {
        "event_id": event.event_id, "json": json.loads(event.json), "stream_ordering": 1, "outlier": False,
        "rejected_reason": None, "soft_failed": False, "internal_metadata": {}, "room_version": event.room_version,
    }  # fmt: skip
    return Told(about, b'{"json":' + event.json + b"}")


def made(room: MadeRoom, number: int) -> Told:
    return told(room.topic(f"topic {number}") if number % 10 == 0 else room.message())


class Sight(Sampling):
    """When each event was first seen here."""

    def __init__(self) -> None:
        super().__init__(0.01)
        self.seen: dict[str, float] = {}
        self._last = 0

    def sample(self) -> None:
        """Notes the events that are new."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT event_id, stream_ordering FROM events_event WHERE stream_ordering > %s ORDER BY 2", [self._last]
            )
            for event_id, self._last in cursor.fetchall():
                self.seen[event_id] = time.monotonic()

    def ended(self) -> None:
        """The thread's own connection."""
        connection.close()


def measure(writer: Writer, rooms: list[MadeRoom], mirror: psutil.Process) -> dict[str, float]:
    committed: dict[str, float] = {}
    with Sight() as sight:
        before, begun = sum(mirror.cpu_times()[:2]), time.monotonic()
        for number in range(PER_SECOND * SECONDS):
            time.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
            event = made(rooms[number % ROOMS], number)
            writer.end(writer.begin(event))
            committed[event.event_id] = time.monotonic()
        spent, lasted = sum(mirror.cpu_times()[:2]) - before, time.monotonic() - begun
        deadline = time.monotonic() + 10
        while committed.keys() - sight.seen.keys() and time.monotonic() < deadline:
            time.sleep(0.05)
    if missing := committed.keys() - sight.seen.keys():
        raise RuntimeError(f"{len(missing)} events did not come")
    delays = [(sight.seen[event_id] - at) * 1000 for event_id, at in committed.items()]
    return {"p50": percentile(delays, 0.5), "p99": percentile(delays, 0.99), "cpu_percent": 100 * spent / lasted}


def main() -> None:
    """Measure once, over a minute."""
    report = Report("mirror", "a mirror at 40 events a second")
    wire = TcpWire()
    with synapse_database(database_url()) as url:
        writer = Writer(url, "master", wire)
        wire.positions = writer.positions
        rooms = [public_room(room_id=f"!{number}:a.test") for number in range(ROOMS)]
        for room in rooms:
            writer.store(*map(told, room.events))
        # As after the first filling: the rooms come by the live way, too, and Spark is not needed.
        MirroredServer.objects.create(
            name="mirror", server_name=SERVER_NAME, positions={"events": {"": 0}, "backfill": {"": 0}},
            filled_at=timezone.now(),
        )  # fmt: skip
        with process("manage.py", "mirror", url, wire.address, "--server-name", SERVER_NAME) as mirror:
            hear(mirror)
            for name, value in measure(writer, rooms, psutil.Process(mirror.pid)).items():
                report.add(figure=name, value=value, limit=LIMITS[name], of_limit=value / LIMITS[name])
        writer.close()
        wire.close()
    report.finish()
