"""The page about checking and repairing: its commands print what it says, and every subject has its line."""

from __future__ import annotations

import re

import pytest

from events.models import ForwardExtremity
from pipeline.operations.resync_and_room_mend import RESYNCED
from streams.jobs.command import command_lines
from tests.support.made_rooms import BOB, MadeRoom
from tests.support.persisted_rooms import persist_all
from tests.support.session import PROJECT

PAGE = (PROJECT / "docs" / "how-to" / "check-and-repair-a-room.md").read_text()


@pytest.mark.django_db(transaction=True)
def test_the_commands_print_what_the_page_says(run_manage):
    made = MadeRoom(room_id="!room:a.test", ruled=True)
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.member(BOB, "join")
    while len(made.events) < 8:
        made.message()
    persist_all(made.events, 10)
    leaf = made.events[-1].event_id
    ForwardExtremity.objects.filter(event_id=leaf).delete()
    console = re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)[1]
    parts = re.split(r"^\$ manage\.py (.*)\n", console, flags=re.MULTILINE)[1:]
    for typed, shown in zip(parts[::2], parts[1::2], strict=True):
        command = typed.partition(" | ")[0].replace("'", "")
        done = run_manage(*command.split())
        if "--json" in command:
            assert f'"before": {shown.strip()}'.replace(":1", ": 1") in done.stdout
        else:
            assert done.stdout == shown.replace("$leaf", leaf), done.stderr


def test_every_subject_has_its_line():
    told = set(re.findall(r"^\| `resync (\w+)", PAGE, re.MULTILINE))
    assert told == set(command_lines("resync")) >= {*RESYNCED, "user", "reader"}
