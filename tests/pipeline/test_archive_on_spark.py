"""Archives that Spark writes: the same as those of one process, restorable, and importable elsewhere."""

import io
from pathlib import Path

import pytest

from events.models import Event, EventJson
from pipeline.archive import write
from pipeline.archive.format import read_manifest
from pipeline.errors import SparkFailed
from streams.jobs.folders import any_folder
from streams.jobs.run import run_job
from tests.integration.events.test_purging import middle
from tests.integration.pipeline.test_restore import assert_same, everything, restore, stored
from tests.pipeline.imports import run_import
from tests.support.emptying import empty_tables

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _server(settings):
    settings.REPLSITE_SERVER_NAME = "nobody.test"


def job(kind, **arguments):
    with any_folder():
        return run_job(kind, arguments, stream=io.StringIO())


def test_spark_writes_what_one_process_writes(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "EVENTS_PER_FILE", 50)
    room_id = stored("v11_fork_walk")
    here, there = (
        read_manifest(Path(job("archive", room=room_id, folder=str(tmp_path), spark=uses_spark)["folder"]))
        for uses_spark in (False, True)
    )
    told = [
        [(file.name, file.table, file.rows, file.digest) for file in sorted(one.files, key=str)]
        for one in (here, there)
    ]
    assert told[0] == told[1] and len(here.of("event")) > 5


def test_what_spark_archived_is_purged_and_comes_back(spark, tmp_path):
    room_id = stored("v10_rejected")
    before = everything(room_id)
    cut = f"t{middle(room_id, 0.7)}-0"
    outcome = job("purge history", room=room_id, before_token=cut, archive=str(tmp_path), spark=True)
    assert outcome["archive"]["events"] == outcome["deleted"] + outcome["became_outliers"] > 0
    restore(outcome["archive"]["folder"])
    assert_same(everything(room_id), before)


def test_a_task_that_fails_leaves_no_archive(spark, tmp_path, monkeypatch):
    room_id = stored("v9_restricted")
    monkeypatch.setattr(write, "_EVENTS", write._EVENTS.replace("e.sender,", "e.sender || chr(0) AS sender,"))
    with pytest.raises(SparkFailed):
        job("archive", room=room_id, folder=str(tmp_path), spark=True)
    assert list(tmp_path.iterdir()) == []


def test_events_of_an_archive_can_be_imported_elsewhere(spark, tmp_path):
    room_id = stored("v11_redactions")
    texts = {row.event_id: bytes(row.json) for row in EventJson.objects.all()}
    folder = Path(job("archive", room=room_id, folder=str(tmp_path))["folder"])
    empty_tables()
    outcome = run_import(*sorted(folder.glob("event-*.parquet")))
    assert (outcome.imported, outcome.quarantined) == (len(texts), 0)
    assert {row.event_id: bytes(row.json) for row in EventJson.objects.all()} == texts
    assert Event.objects.filter(room_id=room_id).count() == len(texts)
