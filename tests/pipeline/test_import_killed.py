"""Whatever is killed, and whenever: the tables end as after one clean import, with ``--resume`` and without."""

from __future__ import annotations

import signal

import pytest
from django.db import connection

from pipeline.errors import SourceChanged
from pipeline.models import ImportedRoom, Job
from tests.pipeline.imports import SMALL_ROOMS, content, run_import, staging_tables
from tests.support.emptying import empty_tables
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark"), pytest.mark.slow]

KILLED = """
import io, json, time
from pipeline.importing import job as importing
from pipeline.importing.job import ImportOptions, import_history
from pipeline.importing import runners

def die(step):
    if step == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)

whole, driver, at = runners.import_pack, os.getpid(), sys.argv[1]

def killed(work, number, events):
    # Ends driver and worker when half of the packs are loaded, or in the middle of a pack. Spark sends this function.
    def step(name):
        if number == 3 and name == {"half": "committed", "middle": "copied events"}.get(at):
            os.kill(driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    whole(work, number, events, step)

def load_killed(load):
    def wrapped(*given):
        from pipeline.importing import runners
        runners.import_pack = killed
        yield from load(*given)
    return wrapped

runners.import_pack = killed
runners._load_parcels = load_killed(runners._load_parcels)
options = ImportOptions(sys.argv[3:], events_per_pack=300, master=sys.argv[2] or None, pause=die)
import_history(options, io.StringIO())
"""


@pytest.fixture
def killed_import(run_script):
    def kill(step, master="local[1]"):
        done = run_script(KILLED, step, master, *map(str, SMALL_ROOMS), timeout=4 * DEADLINE_SECONDS)
        assert done.returncode == -signal.SIGKILL, done.stderr
        return done

    return kill


@pytest.fixture(scope="module")
def clean(spark, module_database):
    """What one clean import gives: summary and content of the tables."""
    outcome = run_import(*SMALL_ROOMS)
    found = content()
    empty_tables()
    return without_seconds(outcome), found


def without_seconds(outcome):
    return outcome.summary() | {"seconds": 0}


def loaded_rooms():
    return ImportedRoom.objects.count()


@pytest.mark.parametrize(
    "step", [*(pytest.param(step, marks=pytest.mark.scenario) for step in ("read", "half")), "middle"]
)
def test_a_resumed_import_ends_like_a_clean_one(step, clean, killed_import):
    killed_import(step)
    assert (loaded_rooms() > 0) == (step != "read")
    assert staging_tables()
    outcome = run_import(*SMALL_ROOMS, resume=True)
    assert (without_seconds(outcome), content()) == clean
    assert Job.objects.count() == 1 and staging_tables() == []


@pytest.mark.parametrize("step", ["read", "half", "middle"])
def test_the_same_without_spark(step, clean, killed_import):
    killed_import(step, "")
    assert (loaded_rooms() > 0) == (step != "read") and staging_tables()
    outcome = run_import(*SMALL_ROOMS, resume=True, master=None)
    assert (without_seconds(outcome), content()) == clean
    assert Job.objects.count() == 1 and staging_tables() == []


@pytest.mark.scenario
def test_rooms_are_whole_after_a_kill_and_a_new_import_loses_and_doubles_nothing(clean, killed_import, rows):
    killed_import("middle")
    loaded = dict(rows("SELECT room_id, count(*) FROM events_event GROUP BY 1"))
    whole = {room: len(order) for room, order in clean[1]["order"]}
    assert loaded and loaded.items() < whole.items()
    outcome = run_import(*SMALL_ROOMS)
    assert content() == clean[1]
    assert (outcome.duplicates, outcome.imported) == (sum(loaded.values()), outcome.read - sum(loaded.values()))
    assert [job.state for job in Job.objects.all()] == ["done", "failed"] and staging_tables() == []


def test_what_is_staged_outlasts_a_crash_of_postgresql(killed_import, rows):
    killed_import("middle", "")
    kinds = rows("SELECT DISTINCT relpersistence FROM pg_class WHERE starts_with(relname, 'pipeline_stage_')")
    assert kinds == [("p",)]  # recovery empties unlogged tables
    run_import(*SMALL_ROOMS, resume=True, master=None)
    assert staging_tables() == []


@pytest.mark.scenario
def test_what_another_version_staged_is_staged_anew(clean, killed_import):
    killed_import("middle")
    with connection.cursor() as cursor:
        for table in staging_tables():
            cursor.execute(f"TRUNCATE {table}")
    outcome = run_import(*SMALL_ROOMS, resume=True)
    assert (without_seconds(outcome), content()) == clean


def test_a_file_that_changes_while_it_is_read_is_refused_and_nothing_is_loaded(tmp_path, rows, monkeypatch):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(SMALL_ROOMS[0].read_bytes())
    change = lambda *_: path.write_bytes(SMALL_ROOMS[1].read_bytes())  # noqa: E731
    monkeypatch.setattr("pipeline.importing.runners.packs_of", change)
    with pytest.raises(SourceChanged, match="has changed"):
        run_import(path)
    assert rows("SELECT count(*) FROM events_event") == [(0,)]
    assert Job.objects.get().state == "failed"
