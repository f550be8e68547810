"""The whole server is killed and comes back: the same process goes on writing, and nothing is lost or passed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.support.own_server import run_on_own_server

_SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import django
django.setup()
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection, transaction
from replsite.snapshot.take import take_snapshot
from streams.db import driver as database
from streams import epochs
from streams.maintenance import check as inspection
from streams.errors import StreamError
from streams.writing.process import current_writer, retire_all
from tests.support.waiting import wait_until
from tests.support.writing import append, ids, linear, session

def epochs_of(cursor):
    epochs.current_epoch(cursor)
    cursor.execute("SELECT count(*) FROM streams_epoch")
    return cursor.fetchone()[0]

def behind():
    # what a linear reader waits for, as the live page tells it
    return max(writer.behind_facts for writer in take_snapshot().stream("caches").writers)

call_command("migrate", verbosity=0)
known = append(3)
open_ids = []
try:
    with transaction.atomic():
        open_ids = append(2)
        pid = int((Path(os.environ["REPLSITE_DATA_DIR"]) / "postgres/data/postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
    known += open_ids  # its server process was still there and committed
except (DatabaseError, InterfaceError):
    pass

def works():
    try:
        known.extend(append())
        return True
    except (StreamError, DatabaseError, InterfaceError):
        connection.close()

def reaches_head():
    try:
        return linear() == known[-1] and current_writer().lease >= 2
    except database.DatabaseError:
        works()  # that was still the server that dies

wait_until(works, 60)
wait_until(reaches_head, 60)
connection.close()  # it may still be one to the server that died
known.extend(append())
wait_until(reaches_head, 60)
with session() as cursor:
    findings = [(found.stream, found.verdict) for found in inspection.inspect_streams(cursor) if not found.well]
    epochs_begun = epochs_of(cursor)
result = {"known": known, "ids": ids(), "open": open_ids, "lease": current_writer().lease, "behind": behind(),
          "findings": findings, "epochs": epochs_begun, "retired": retire_all()}
connection.close()
print(json.dumps(result))
"""


def test_server_killed_under_an_open_transaction(tmp_path: Path):
    found = run_on_own_server(_SCRIPT, tmp_path)
    assert set(found["known"]) <= set(found["ids"]) <= {*found["known"], *found["open"]}
    assert len(set(found["ids"])) == len(found["ids"])
    assert found["lease"] >= 2
    jumps = [after - before for before, after in pairwise(sorted(found["known"]))]
    assert max(jumps) > 5, "the sequence was written ahead, so a crash makes it jump"
    assert (found["findings"], found["behind"]) == ([], 0), "positions, lag and check are right over the jump"
    assert found["epochs"] == 1, "a crash loses nothing, so it begins no epoch"
    assert found["retired"]


_PATIENT = """
import json, os, signal, subprocess, sys
from pathlib import Path
import django
django.setup()
from django.core.management import call_command
from django.db import connection
from replsite.snapshot.take import take_snapshot
from streams.models import Instance
from tests.support.waiting import wait_until
from tests.support.writing import ids, session

call_command("migrate", verbosity=0)
command = ["append", "caches", "--count", "1000000000", "--rate", "50", "--instance", "load-1", "--patient"]
process = subprocess.Popen([sys.executable, "manage.py", *command], stderr=subprocess.PIPE, text=True)

def there_are_more_than(count):
    connection.close()
    try:
        return len(ids()) > count
    except Exception:
        return False

try:
    wait_until(lambda: there_are_more_than(20), 60)
    for _ in range(2):
        pid = int((Path(os.environ["REPLSITE_DATA_DIR"]) / "postgres/data/postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGINT)  # a restart of the server: its sessions are ended
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 60)
        wait_until(lambda: there_are_more_than(0), 60)
        count = len(ids())
        wait_until(lambda: there_are_more_than(count + 20), 60)
    def writing():
        connection.close()
        return [w.writer for w in take_snapshot().stream("caches").writers if w.status.word == "writing"]
    wait_until(lambda: writing() == ["load-1"], 30)
    found = {"lease": Instance.objects.get(name="load-1").lease, "polled": process.poll()}
finally:
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
connection.close()
print(json.dumps({**found, "said": said.splitlines()[-1]}))
"""


def test_a_patient_load_outlives_restarts_of_the_server(tmp_path: Path):
    found = run_on_own_server(_PATIENT, tmp_path)
    assert (found["polled"], found["lease"]) == (None, 3)
    assert "Interrupted" in found["said"]
