"""The examples of the how-tos on Spark run; those on following, run again, add only what is new."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from events.models import CurrentState, Room
from pipeline import ROOM_FRAMES
from pipeline.errors import RoomsKnown
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.db.driver import dsn
from streams.models import Reader
from tests.integration.events.test_live_is_bulk import generated
from tests.integration.events.test_room_repair import extra_edge
from tests.pipeline.imports import SMALL_ROOMS, write_lines
from tests.support.persisted_rooms import persist_all
from tests.support.room_data import event_lines
from tests.support.writing import store_positions

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PAGE = HOW_TO / "follow-with-spark.md"
FRAMES_PAGE = HOW_TO / "rooms-as-frames.md"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("spark")
def test_the_examples_run_and_run_again(tmp_path, capsys):
    follow, append = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names = {"DSN": dsn(), "folder": tmp_path}
    for expected in ("3 facts so far", "1006 facts so far"):
        facts = [CacheInvalidation(cache_name="c", keys=["k"]) for _ in range(3)]
        registry.get("caches").append(*facts)
        store_positions()
        exec(compile(follow, str(PAGE), "exec"), names)
        assert expected in capsys.readouterr().out
        exec(compile(append, str(PAGE), "exec"), names)
    assert CacheInvalidation.objects.count() == 1006
    assert Reader.objects.filter(name="notebook", kind="spark").exists()


@pytest.mark.usefixtures("spark")
def test_rooms_as_frames(tmp_path, capsys):
    example, *_ = re.findall(r"```python\n(.*?)```", FRAMES_PAGE.read_text(), re.S)
    exec(compile(example, str(FRAMES_PAGE), "exec"), {"folder": tmp_path, "sources": [*SMALL_ROOMS[:2]]})
    out = capsys.readouterr().out
    assert f"{sum(len(event_lines(path.parent.name)) for path in SMALL_ROOMS[:2])} events, 0 broken lines" in out
    assert "|answers|" in re.sub(" +", "", out) and "|entries|" in re.sub(" +", "", out)
    tables = {path.name: pq.read_table(path).num_rows for path in (tmp_path / "rooms").iterdir()}
    assert tables.keys() == ROOM_FRAMES.keys() and tables["rooms"] == 2 and tables["state_groups"] > 10


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("spark")
def test_rooms_of_a_database_as_frames(tmp_path, capsys):
    made = generated(0)
    persist_all(made.events, 100)
    extra_edge(made.room_id)
    _, example, of_new_rooms, _ = re.findall(r"```python\n(.*?)```", FRAMES_PAGE.read_text(), re.S)
    exec(compile(example, str(FRAMES_PAGE), "exec"), {"folder": tmp_path, "DSN": dsn()})
    out = re.sub(" +", "", capsys.readouterr().out)
    joined = CurrentState.objects.filter(room_id=made.room_id, membership="join").count()
    assert f"|{made.room_id}|{len(made.events)}|{joined}|" in out
    assert f"|{made.room_id}|events_eventedge|1|" in out and out.count(f"|{made.room_id}|") == 2
    lines = [{"json": json.loads(event.json), "room_version": event.room_version} for event in made.events]
    source = write_lines(tmp_path / "in", *lines, *event_lines("v9_restricted"))
    names = {"folder": tmp_path, "DSN": dsn(), "sources": [source]}
    exec(compile(of_new_rooms, str(FRAMES_PAGE), "exec"), names)
    out = re.sub(" +", "", capsys.readouterr().out)
    assert f"|event-known|{len(made.events)}|" in out and made.room_id not in out and "|9|" in out


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("spark")
def test_rooms_are_stored_and_the_call_is_made_again(tmp_path, capsys):
    """A call that is made again is a job of its own, to which the rooms are known."""
    *_, example = re.findall(r"```python\n(.*?)```", FRAMES_PAGE.read_text(), re.S)
    names = {"folder": tmp_path, "DSN": dsn(), "SOURCES": [str(path) for path in SMALL_ROOMS[:2]]}
    exec(compile(example, str(FRAMES_PAGE), "exec"), names)
    assert "'rooms': 2" in capsys.readouterr().out and Room.objects.count() == 2
    with pytest.raises(RoomsKnown):
        exec(compile(example, str(FRAMES_PAGE), "exec"), names)
