"""Maintenance of a room that is killed beside a live writer and run again: the room has to be as after one clean run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

from django.db import DatabaseError, InterfaceError, connection, connections

from events.integrity.repair import check_room
from events.models import Event
from events.persist.room_cache import clear_caches
from pipeline.models import ComparedRooms, Job, MendedRoom
from streams import registry
from streams.db.driver import DatabaseError as DriverError
from streams.db.sequences import move_forward
from streams.errors import StreamError
from streams.jobs.rows import hold_lock
from streams.testing import forget_writers
from tests.integration.events import test_room_repair as damage
from tests.integration.events.test_purging import check_groups, middle, states
from tests.integration.events.test_room_purging import tables_that_name
from tests.oracle.answers import parsed
from tests.support.emptying import empty_tables
from tests.support.foreign_groups import store_as
from tests.support.made_rooms import BOB, MadeRoom
from tests.support.persisted_rooms import current_state, extremities, gaps, incoming, persist, replayed_state
from tests.support.ranges import stored_ranges
from tests.support.stored_rooms import store_room
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.warm_start import WARM

Work = tuple[str, str, dict[str, Any]]
"""A room, a kind of job, and its arguments."""
_EVENTS = """
SELECT event_id, stream_ordering, instance_name, type, state_key, topological_ordering, outlier, rejected_reason, soft_failed,
    redacted_by, state_unresolved
FROM events_event WHERE room_id = %s ORDER BY event_id
"""
#: What belongs to events, whether these are there or not; another room's are left out.
_OF_EVENTS = "SELECT {columns} FROM {table} WHERE event_id <> ALL(%s) ORDER BY {columns}"
_TEMPORARY = "SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relkind = 'r'"


def _history() -> Work:
    room_id = store_room(parsed("v11_redactions")).room_id
    return room_id, "purge history", {"room": room_id, "before_token": f"t{middle(room_id)}-0"}


def _compressing() -> Work:
    room_id = store_room(parsed("v9_restricted")).room_id
    store_as(room_id, "copied")
    return room_id, "compress state", {"rooms": [room_id]}


def _whole_room() -> Work:
    room_id = store_room(parsed("v11_redactions")).room_id
    return room_id, "purge room", {"room": room_id}


def _resync() -> Work:
    room_id = store_room(parsed("v11_redactions")).room_id
    for kind in (damage.wrong_range, damage.lost_extremity, damage.missing_current_state, damage.lost_edge):
        kind(room_id)
    clear_caches()
    return room_id, "resync", {"what": "rooms"}


WORK: Mapping[str, Callable[[], Work]] = {
    "purge history": _history,
    "compress state": _compressing,
    "purge room": _whole_room,
    "resync": _resync,
}


class Live(threading.Thread):
    """Persists the events of a room of its own, one by one; one whose outcome is not known is sent again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.made = MadeRoom("10", "!beside:a.test", ruled=True)
        for number in range(200):
            if number % 3:
                self.made.message()
            else:
                self.made.member(BOB, "leave" if number % 2 else "join")
        self.acknowledged: list[str] = []
        self.refused: list[Any] = []
        self.error: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            for event in self.made.events:
                while not self._ended.wait(0.005) and not self._is_stored(event):
                    pass
        except BaseException as error:  # noqa: BLE001 - told by ``end``
            self.error = error
        finally:
            connections.close_all()

    def _is_stored(self, event: Any) -> bool:
        try:
            self.refused += persist([incoming(event)]).refused
        except (StreamError, DatabaseError, InterfaceError):
            connection.close()  # the server was killed: nothing is known of this one
            return False
        self.acknowledged.append(event.event_id)
        return True

    def end(self) -> None:
        """End, and say what went wrong."""
        self._ended.set()
        self.join(DEADLINE_SECONDS)
        assert (self.error, self.refused) == (None, []) and self.acknowledged


def run_job(victim: str, at: int, work: Work, env: Mapping[str, str]) -> tuple[int, str]:
    """Exit status and output of a process that carries the work out."""
    words = ("-m", "tests.support.killed_job", victim, str(at), work[1], json.dumps(work[2]))
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "replsite.settings", "REPLSITE_SERVER_NAME": "nobody.test",
        "REPLSITE_WRITER": "killed", **env,
    }  # fmt: skip
    with WARM.popen(words, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        return process.wait(2 * DEADLINE_SECONDS), process.stdout.read()


def start_over() -> None:
    """Empty the tables; this process lets go what it keeps of them."""
    forget_writers()
    empty_tables()
    clear_caches()


def of_room(room_id: str) -> dict[str, Any]:
    """All that is stored of a room, groups by the states that they mean; and which tables name it."""
    others = list(Event.objects.exclude(room_id=room_id).values_list("event_id", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS, [room_id])
        events = cursor.fetchall()
        found = {
            "events": events, "states": states([row[0] for row in events]), "ranges": stored_ranges(room_id),
            "current": current_state(room_id), "leaves": extremities(room_id), "gaps": gaps(room_id),
            "tables": tables_that_name(room_id),
        }  # fmt: skip
        for table, columns in (
            ("eventjson", "event_id"),
            ("eventedge", "event_id, prev_event_id"),
            ("eventauth", "event_id"),
        ):
            cursor.execute(_OF_EVENTS.format(table=f"events_{table}", columns=columns), [others])
            found[table] = cursor.fetchall()
    return found


def clean_run(name: str, env: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """How many calls of the database one undisturbed run makes, and what it leaves."""
    start_over()
    work = WORK[name]()
    status, said = run_job("process", 0, work, env)
    assert status == 0, said
    return int(said.splitlines()[-1]), of_room(work[0])


def killed_and_repeated(name: str, victim: str, at: int, clean: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Kill at that call, beside a live writer, run it again, and hold what is there against the clean run."""
    start_over()
    work = WORK[name]()
    with connection.cursor() as cursor:
        for stream in ("events", "backfill"):
            move_forward(cursor, registry.get(stream).declaration.sequence, 100_000)
    live = Live()
    live.start()
    try:
        status, said = run_job(victim, at, work, env)
        assert status == (-signal.SIGKILL if victim == "process" else 1), said
        wait_until(is_free, what="the locks of the killed process are gone")
        status, said = run_job("process", 0, work, env)
        assert status == 0, said
    finally:
        live.end()
    clear_caches()
    found = of_room(work[0])
    for what, rows in clean.items():
        assert found[what] == rows, (at, what)
    if name != "purge room":
        assert check_room(work[0]).clean
        check_groups(work[0])
    beside = live.made.room_id
    assert set(live.acknowledged) <= set(Event.objects.filter(room_id=beside).values_list("event_id", flat=True))
    assert check_room(beside).clean and current_state(beside) == replayed_state(beside)
    check_groups(beside)
    assert not MendedRoom.objects.exists() and not ComparedRooms.objects.exists()
    assert not Job.objects.exclude(state__in=["done", "failed"]).exists()
    with connection.cursor() as cursor:
        cursor.execute(_TEMPORARY)
        assert cursor.fetchone() == (0,)


def is_free() -> bool:
    """Whether the server answers and nobody holds the lock of a job that its row calls running."""
    try:
        with hold_lock("default") as lock:
            return all(lock.acquire(job) for job in Job.objects.filter(state="running").values_list("pk", flat=True))
    except (StreamError, DatabaseError, InterfaceError, DriverError):  # it is away
        connection.close()
        return False
