"""PostgreSQL is killed, under a writer's transaction and then under a reader's, and comes back: the same process goes on.

It writes, handles and listens all the while: nothing is lost, passed over or done twice.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.support.own_server import run_on_own_server

_SCRIPT = """
import asyncio, json, os, signal, threading
from pathlib import Path
import django
django.setup()
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection, connections, transaction
from replsite.live_rows.reading import read_snapshot
from streams import epochs
from streams.db import driver as database
from streams.errors import StreamError
from streams.follow import Begin, Handler, Reader, View
from streams.maintenance import check as inspection
from streams.models import StoredCursor
from tests.support.effects import effects, effects_table, take
from tests.support.waiting import wait_until
from tests.support.writing import append, ids, linear, session, stream

GONE = (StreamError, DatabaseError, InterfaceError, database.DatabaseError)
errors, known, open_ids = [], [], []

def kill():
    pid = int((Path(os.environ["REPLSITE_DATA_DIR"]) / "postgres/data/postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)

def when_it_is_back(work):
    # what the work returns, as soon as the server answers and that is true
    def attempt():
        try:
            return work()
        except GONE:
            connection.close()  # it may still be one to the server that died
    return wait_until(attempt, 60)

def writes():
    known.extend(append())
    return True

def reaches_head():
    return linear() >= known[-1]  # a crash makes the sequence jump, and positions with it

def runs(work):
    def run():
        try:
            work()
        except Exception as error:
            errors.append(repr(error))
        finally:
            connections.close_all()
    threads.append(threading.Thread(target=run, daemon=True))
    threads[-1].start()

# --- those that listen
found, beats, done, threads = [[], []], [0, 0], threading.Event(), []

def heard(at, one):
    # whether the listener is to go on
    if one is not None:
        found[at].append(one.stream_id)
    elif done.is_set():
        return False
    else:
        beats[at] += 1
    return True

def listen():
    for one in stream().listen(after=1, beat=0.2):
        if not heard(0, one):
            return

async def alisten():
    async for one in stream().listen(after=1, beat=0.2):
        if not heard(1, one):
            return

def they_beat():
    before = list(beats)
    wait_until(lambda: all(now > then for now, then in zip(beats, before)), 60)

# --- one that handles
calls, killed = [], threading.Event()

def handle(chunk):
    take(chunk, chunk.stream)
    calls.append(len(chunk))
    if len(calls) == 3:  # the effect is written and not committed
        kill()
        killed.set()

def all_handled():
    return effects("caches") == ids() or errors

call_command("migrate", verbosity=0)
with effects_table():
    known += append(40)
    runs(listen)
    runs(lambda: asyncio.run(alisten()))
    wait_until(lambda: all(len(one) == 40 for one in found), 60)
    try:
        with transaction.atomic():
            open_ids = append(2)
            kill()
        known += open_ids  # its server process was still there and committed
    except (DatabaseError, InterfaceError):
        pass
    when_it_is_back(writes)
    when_it_is_back(reaches_head)
    they_beat()
    reader = Reader("r", [Handler("caches", "r", handle, begin=Begin.OLDEST, view=View.LINEAR, chunk_rows=10)])
    runs(reader.run)
    assert killed.wait(60)
    when_it_is_back(writes)
    when_it_is_back(writes)
    when_it_is_back(all_handled)
    # the lock went with the server: noticed at the next beat
    when_it_is_back(lambda: StoredCursor.objects.get().lease >= 2)
    they_beat()
    connection.close()
    writes()
    when_it_is_back(reaches_head)
    when_it_is_back(all_handled)
    wait_until(lambda: errors or all(len(one) >= len(ids()) for one in found), 60)
    reader.stop()
    done.set()
    for thread in threads:
        thread.join(60)
    with session() as cursor:
        findings = [(found.stream, found.verdict) for found in inspection.inspect_streams(cursor) if not found.well]
        epochs.current_epoch(cursor)
        cursor.execute("SELECT count(*) FROM streams_epoch")
        epochs_begun = cursor.fetchone()[0]
    print(json.dumps({
        "known": known, "ids": ids(), "open": open_ids, "findings": findings,
        # what a linear reader waits for, as the live page tells it
        "behind": max(writer.behind_facts for writer in read_snapshot().stream("caches").writers),
        "epochs": epochs_begun, "errors": errors, "alive": any(thread.is_alive() for thread in threads),
        "effects": effects("caches"), "base": StoredCursor.objects.get().base, "found": found,
    }))
connection.close()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_on_own_server(_SCRIPT, tmp_path_factory.mktemp("killed"))


def test_the_writer_goes_on_and_nothing_that_was_committed_is_lost_or_passed(found):
    assert set(found["known"]) <= set(found["ids"]) <= {*found["known"], *found["open"]}
    assert len(set(found["ids"])) == len(found["ids"])
    jumps = [after - before for before, after in pairwise(sorted(found["known"]))]
    assert max(jumps) > 5, "the sequence was written ahead, so a crash makes it jump"
    assert (found["findings"], found["behind"]) == ([], 0), "positions, lag and check are right over the jump"
    assert found["epochs"] == 1, "a crash loses nothing, so it begins no epoch"


def test_each_effect_is_there_once_though_the_server_died_between_effect_and_cursor(found):
    assert (found["alive"], found["errors"]) == (False, [])
    assert found["effects"] == found["ids"], "nothing missing, nothing twice, in order"
    assert found["base"] == found["ids"][-1]


def test_listeners_beat_meanwhile_and_hear_every_fact_once(found):
    assert found["found"] == [found["ids"]] * 2
