"""The page about a database that is too big: its commands run, and a dry run says what the run does."""

from __future__ import annotations

import io
import json
import re
import shlex

import pytest
from django.core.management import call_command

from events.models import Event
from events.persist.room_cache import clear_caches
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.persisted_rooms import incoming, persist
from tests.support.session import PROJECT

PAGE = (PROJECT / "docs" / "how-to" / "my-database-is-too-big.md").read_text()
COMMANDS = re.findall(r"^\$ manage\.py (.*)$", PAGE.replace("example.org", "a.test"), re.MULTILINE)


@pytest.fixture(autouse=True)
def _forget():
    yield
    clear_caches()


def run(command, *more):
    out = io.StringIO()
    call_command(*shlex.split(command), *more, stdout=out, stderr=io.StringIO())
    return out.getvalue()


@pytest.mark.django_db(transaction=True)
def test_the_commands_do_what_the_page_says():
    made = MadeRoom("10", "!room:a.test", ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.retention", "", {"max_lifetime": 1000})
    for n in range(6):
        made.send({"type": "m.room.message", "origin_server_ts": 1_767_225_599_990 + 5 * n})
    persist([incoming(event) for event in made.events])
    foreseen = {}
    for command in COMMANDS:
        plain = command.removesuffix(" --dry-run")
        told = json.loads(run(command, "--json"))
        if plain == command:
            assert told == {**foreseen[plain], "dry_run": False}
        else:
            foreseen[plain] = told
    assert foreseen["purge history '!room:a.test' --before-time 2026-01-01"]["deleted"] == 1
    assert foreseen["purge retention"]["deleted"] == 4
    kept = foreseen["purge room '!room:a.test'"]["tables"]
    assert kept["events_event"] == [len(made.events) - 5, 0]
    assert not Event.objects.exists()


def test_every_purge_has_its_line_and_says_so_for_people():
    subjects = {command.split()[1] for command in COMMANDS if command.startswith("purge ")}
    assert subjects == {"history", "room", "retention", "orphans", "stream"}
