"""``compress_state`` plans rooms on Spark as in this process, and rewrites the same ones."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from events.maintenance.group_compaction import group_rows
from pipeline.maintenance import room_tasks
from pipeline.models import Job
from pipeline.operations import compress_state as compress
from state.models import StateGroup
from tests.oracle.answers import parsed
from tests.support.foreign_groups import store_as
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db(transaction=True)
LOCAL = "local[2]"


def run(*arguments):
    out = io.StringIO()
    call_command("room", "compress", *arguments, "--json", stdout=out, stderr=io.StringIO())
    return json.loads(out.getvalue())


@pytest.fixture
def rooms():
    """Two rooms as other servers store them, and one of our own, which would not shrink."""
    made = [store_room(parsed(name), first).room_id for name, first in (("v9_restricted", 2), ("v10_rejected", 3_000))]
    for room_id in made:
        store_as(room_id, "copied")
    return [*made, store_room(parsed("v11_redactions"), 6_000).room_id]


def test_rooms_are_planned_on_spark_as_in_this_process(spark, rooms, monkeypatch):
    before = {room_id: group_rows(room_id, "default") for room_id in rooms}
    dry = run("--all", "--dry-run")
    assert run("--all", "--dry-run", "--master", LOCAL) == dry
    assert (dry["compressed"], dry["skipped"]) == (2, 1)
    assert {room_id: group_rows(room_id, "default") for room_id in rooms} == before
    monkeypatch.setattr(compress, "GROUPS_IN_PROCESS", 10)
    asked, own = [], room_tasks.ask_rooms
    monkeypatch.setattr(compress, "ask_rooms", lambda *told: asked.append(told) or own(*told))
    done = run(*rooms)
    assert done == {**dry, "dry_run": False} and len(asked) == 1
    assert sum(group_rows(room_id, "default").total for room_id in rooms[:2]) == done["rows"][1]
    assert group_rows(rooms[2], "default") == before[rooms[2]]


def test_unknown_and_damaged_rooms_are_told_and_hold_up_no_other(spark, rooms):
    broken = StateGroup.objects.filter(room_id=rooms[1], prev_group__isnull=False).order_by("id").first()
    StateGroup.objects.filter(pk=broken.prev_group).delete()
    with pytest.raises(CommandError, match="There is no room !no:x") as raised:
        run(*rooms, "!no:x", "--master", LOCAL)
    assert raised.value.returncode == 2
    summary = Job.objects.get().summary
    assert (summary["compressed"], summary["skipped"], summary["unknown"]) == (1, 1, ["!no:x"])
    assert list(summary["failed"]) == [rooms[1]] and "room check" in summary["failed"][rooms[1]]
