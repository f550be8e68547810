"""The live pipeline outlives its database: it waits, begins anew where its tables are, and counts every event once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.own_server import run_on_own_server

pytestmark = [pytest.mark.spark, pytest.mark.scenario]

_SCRIPT = """
import json, os, signal, threading
from pathlib import Path
import django
django.setup()
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection, connections
from events.sending.send import NewEvent, create_room
from events.models import Event
from pipeline.live.process import LiveOptions, run
from pipeline.models import RoomStatistics
from streams.errors import StreamError
from tests.support.waiting import wait_until

call_command("migrate", verbosity=0)
done, lost = threading.Event(), []
room = create_room("@ann:localhost")

def say(count):
    room.add([NewEvent("@ann:localhost", "m.room.message", {"body": str(number)}) for number in range(count)])

def attempted(work):
    def once():
        try:
            return work()
        except (StreamError, DatabaseError, InterfaceError) as error:
            lost.append(type(error).__name__)
            connection.close()
    return once

def all_counted():
    return sum(RoomStatistics.objects.values_list("events", flat=True)) == Event.objects.count()

def said():
    say(20)
    return True

def scenario():
    try:
        wait_until(attempted(all_counted), 200)
        pid = int((Path(os.environ["REPLSITE_DATA_DIR"]) / "postgres/data/postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        wait_until(attempted(said), 100)
        wait_until(attempted(all_counted), 200)
    finally:
        done.set()
        connections.close_all()

thread = threading.Thread(target=scenario)
reached = run(LiveOptions(), done.is_set, thread.start)
thread.join()
connection.close()
counted = RoomStatistics.objects.get()
print(json.dumps({"events": Event.objects.count(), "room": counted.events, "messages": counted.messages,
                  "reached": sorted(reached), "lost": len(lost)}))
connection.close()
"""


def test_database_is_killed_and_comes_back(tmp_path: Path):
    found = run_on_own_server(_SCRIPT, tmp_path, seconds=580.0)
    assert found["room"] == found["events"] > 20 == found["messages"]
    assert found["lost"] and found["reached"] == ["statistics"]
