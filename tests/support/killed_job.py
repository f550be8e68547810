"""``python -m tests.support.killed_job VICTIM AT KIND ARGUMENTS``: run a job; at its ``AT``-th query the victim is killed.

``VICTIM``: ``process``, this one, or ``server``, the embedded PostgreSQL in ``REPLSITE_DATA_DIR``. Steps are small,
without rests. With ``AT`` 0 nothing is killed. The last line tells how many calls there were.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import django

_CALLS = {"execute", "executemany", "copy_expert", "commit"}


class _Killer:
    """Counts the calls of the job's own thread."""

    def __init__(self, victim: str, at: int) -> None:
        self.victim, self.at, self.calls = victim, at, 0

    def look(self, _frame: Any, what: str, called: Any) -> None:
        if (
            what != "c_call"
            or called.__name__ not in _CALLS
            or type(called.__self__).__module__ != "psycopg2.extensions"
        ):
            return
        self.calls += 1
        if self.calls == self.at:
            os.kill(self._pid(), signal.SIGKILL)

    def _pid(self) -> int:
        if self.victim == "process":
            return os.getpid()
        return int((Path(os.environ["REPLSITE_DATA_DIR"]) / "postgres/data/postmaster.pid").read_text().split()[0])


def main() -> None:
    """Run the job."""
    django.setup()
    from events.maintenance import group_compaction, group_gc
    from events.operations import purge_history, purge_room
    from pipeline.maintenance import many_rooms, room_progress
    from streams.jobs import throttle
    from streams.jobs.run import run_job

    purge_history._EVENTS_PER_TRANSACTION = 8
    group_gc._GROUPS_PER_TRANSACTION = 5
    purge_room._EVENTS_PER_TRANSACTION, purge_room._GROUPS_PER_TRANSACTION = 20, 10
    group_compaction._EVENTS_PER_TRANSACTION, group_compaction._ROWS_PER_TRANSACTION = 8, 20
    room_progress._WRITE_SECONDS, many_rooms._ROOMS_AT_ONCE, throttle._REST = 0.0, 2, 0.0
    victim, at, kind, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    killer = _Killer(victim, at)
    sys.setprofile(killer.look)
    run_job(kind, arguments, stream=io.StringIO())
    sys.setprofile(None)
    sys.stdout.write(f"{killer.calls}\n")


if __name__ == "__main__":
    main()
