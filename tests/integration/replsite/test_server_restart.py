"""The whole server is restarted twice: a patient load goes on. Killed: ``streams/test_server_killed.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.own_server import run_on_own_server

_PATIENT = """
import json, os, signal, subprocess, sys
from pathlib import Path
import django
django.setup()
from django.core.management import call_command
from django.db import connection
from replsite.live_rows.reading import read_snapshot
from tests.support.waiting import wait_until
from tests.support.writing import ids, session, store_positions

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
        store_positions()
        return [w.writer for w in read_snapshot().stream("caches").writers if w.status.word == "writing"]
    wait_until(lambda: writing() == ["load-1"], 30)
    found = {"polled": process.poll()}
finally:
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
connection.close()
print(json.dumps({**found, "said": said.splitlines()[-1]}))
"""


@pytest.mark.scenario
def test_a_patient_load_outlives_restarts_of_the_server(tmp_path: Path):
    found = run_on_own_server(_PATIENT, tmp_path)
    assert found["polled"] is None
    assert "Interrupted" in found["said"]
