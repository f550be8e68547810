"""Everything that a site does to its database but for Spark's own work, in one process, on the database that it is given.

Each line of output names a step that went well; the first that does not is the process's error.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import django

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402

from events.reading.pages import timeline  # noqa: E402
from pipeline.importing.staging_tables import create_staging, drop_staging  # noqa: E402
from streams import epochs  # noqa: E402
from tests.support.made_rooms import ALICE, MadeRoom  # noqa: E402
from tests.support.persisted_rooms import incoming, persist  # noqa: E402

_A_JOB = 10**9


def do(*command: str) -> None:
    """One command; a status that tells of something wrong is an error here."""
    call_command(*command, stdout=io.StringIO(), stderr=io.StringIO())
    sys.stdout.write(f"done: {' '.join(command)}\n")


def a_room(room_id: str) -> MadeRoom:
    made = MadeRoom("10", room_id, ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    for _ in range(5):
        made.message()
    made.redaction(made.events[-2])
    persist([incoming(event) for event in made.events])
    return made


def main() -> None:
    User.objects.create_user(f"user-{os.getpid()}")
    do("append", "caches", "--count", "20", "--threads", "2")
    made = a_room(f"!roles{os.getpid()}:a.test")
    assert timeline(made.room_id, ALICE).events
    with TemporaryDirectory() as folder:
        middle = made.events[5].event_id
        do("purge", "history", made.room_id, "--before", middle, "--delete-local", "--archive", folder, "--no-spark")
        (archive,) = Path(folder).iterdir()
        do("restore", str(archive))
        do("purge", "room", made.room_id, "--force", "--archive", folder, "--no-spark")
    other = a_room(f"!other{os.getpid()}:a.test")
    do("check_room", other.room_id)
    do("resync", "rooms", other.room_id)
    do("resync", "visibility", other.room_id, "--dry-run")
    do("compress_state", other.room_id)
    do("censor", "--older-than", "0s")
    do("purge", "orphans")
    do("purge", "retention")
    do("purge", "stream", "caches", "--keep", "5", "--horizon", "0s")
    do("resync", "positions")
    do("jobs", "queue", "check streams")
    do("runjobs", "--once")
    do("check_streams", "--repair")
    do("clearsessions")
    with connection.cursor() as cursor:
        create_staging(cursor, _A_JOB)  # what an import puts its lines into
        drop_staging(cursor, [_A_JOB])
        epochs.begin_epoch(cursor, "said by a test")
    sys.stdout.write("all done\n")


if __name__ == "__main__":
    main()
