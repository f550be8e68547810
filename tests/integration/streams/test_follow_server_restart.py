"""PostgreSQL itself is killed under a reader's transaction and comes back: the same reader goes on, each effect once."""

from __future__ import annotations

from pathlib import Path

from tests.support.own_server import run_on_own_server

_SCRIPT = """
import json, os, signal, threading
from pathlib import Path
import django
django.setup()
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection
from streams.db import driver as database
from streams.errors import StreamError
from streams.follow import Begin, Handler, Reader, View
from streams.models import StoredCursor
from streams.writing.process import retire_all
from tests.support.effects import effects, effects_table, take
from tests.support.waiting import wait_until
from tests.support.writing import append, ids

call_command("migrate", verbosity=0)
killed = threading.Event()
calls = []

def handle(chunk):
    take(chunk, chunk.stream)
    calls.append(len(chunk))
    if len(calls) == 3:  # the effect is written and not committed
        pid = int((Path(os.environ["REPLSITE_DATA_DIR"]) / "postgres/data/postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        killed.set()

errors = []
def run(reader):
    try:
        reader.run()
    except Exception as error:
        errors.append(repr(error))

def works():
    try:
        append(2)
        return True
    except (StreamError, DatabaseError, InterfaceError):
        connection.close()

def all_handled():
    try:
        return effects("caches") == ids() or errors
    except (DatabaseError, InterfaceError, database.DatabaseError):
        connection.close()

with effects_table():
    append(40)
    reader = Reader("r", [Handler("caches", "r", handle, begin=Begin.OLDEST, view=View.LINEAR, chunk_rows=10)])
    thread = threading.Thread(target=run, args=(reader,))
    thread.start()
    assert killed.wait(60)
    wait_until(works, 60)
    wait_until(works, 60)
    wait_until(all_handled, 60)
    wait_until(lambda: StoredCursor.objects.get().lease >= 2, 60)  # the lock went with the server: noticed at the next beat
    append(3)
    wait_until(all_handled, 60)
    reader.stop()
    thread.join(60)
    print(json.dumps({
        "alive": thread.is_alive(), "errors": errors, "ids": ids(), "effects": effects("caches"),
        "base": StoredCursor.objects.get().base, "retired": retire_all(),
    }))
connection.close()
"""


def test_server_killed_between_effect_and_cursor(tmp_path: Path):
    found = run_on_own_server(_SCRIPT, tmp_path)
    assert (found["alive"], found["errors"]) == (False, [])
    assert found["effects"] == found["ids"], "nothing missing, nothing twice, in order"
    assert found["base"] == found["ids"][-1]


_LISTENING = """
import asyncio, json, os, signal, threading, time
from pathlib import Path
import django
django.setup()
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection, connections
from streams.errors import StreamError
from streams.writing.process import retire_all
from tests.support.waiting import wait_until
from tests.support.writing import append, ids, stream

call_command("migrate", verbosity=0)
found, beats, errors, done = [[], []], [0, 0], [], threading.Event()

def listen():
    try:
        for one in stream().listen(after=1, beat=0.2):
            if one is not None:
                found[0].append(one.stream_id)
            elif done.is_set():
                return
            else:
                beats[0] += 1
    except Exception as error:
        errors.append(repr(error))
    finally:
        connections.close_all()

async def alisten():
    try:
        async for one in stream().listen(after=1, beat=0.2):
            if one is not None:
                found[1].append(one.stream_id)
            elif done.is_set():
                return
            else:
                beats[1] += 1
    except Exception as error:
        errors.append(repr(error))

def kill():
    pid = int((Path(os.environ["REPLSITE_DATA_DIR"]) / "postgres/data/postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)

def works():
    try:
        append(3)
        return True
    except (StreamError, DatabaseError, InterfaceError):
        connection.close()

def read():
    try:
        return ids()
    except (DatabaseError, InterfaceError):
        connection.close()

append(40)
threads = [threading.Thread(target=listen), threading.Thread(target=lambda: asyncio.run(alisten()))]
for thread in threads:
    thread.start()
wait_until(lambda: all(len(one) == 40 for one in found), 60)
for _ in range(2):
    kill()
    before = list(beats)
    wait_until(works, 60)
    wait_until(lambda: all(now > then for now, then in zip(beats, before)), 60)
    wait_until(works, 60)
expected = wait_until(read, 60)
wait_until(lambda: errors or all(len(one) >= len(expected) for one in found), 60)
done.set()
for thread in threads:
    thread.join(60)
print(json.dumps({"errors": errors, "found": found, "ids": expected, "retired": retire_all()}))
connection.close()
"""


def test_listeners_go_on_after_the_server_was_killed(tmp_path: Path):
    """With their beats meanwhile, and with every fact once."""
    found = run_on_own_server(_LISTENING, tmp_path)
    assert found["errors"] == []
    assert found["found"] == [found["ids"]] * 2
