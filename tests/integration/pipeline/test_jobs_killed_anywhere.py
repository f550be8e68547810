"""Maintenance is killed at any call of the database, or the database under it, beside a live writer, and run again."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.killed_jobs import WORK, clean_run, killed_and_repeated
from tests.support.own_server import run_on_own_server

_SEED = os.environ.get("KILLED_JOBS_SEED", "1")
_TIMES = int(os.environ.get("KILLED_JOBS_TIMES", "1"))
_SCRIPT = """
import json, os, random
import django
django.setup()
from django.core.management import call_command
from tests.support.killed_jobs import WORK, clean_run, killed_and_repeated
from streams.testing import forget_writers
call_command("migrate", verbosity=0)
chance = random.Random({seed!r})
for name in {names!r}:
    calls, clean = clean_run(name, {{}})
    for _ in range({times}):
        killed_and_repeated(name, "server", chance.randint(2, calls - 1), clean, {{}})
forget_writers()
print(json.dumps("done"))
"""


@pytest.mark.parametrize("name", WORK)
@pytest.mark.django_db(transaction=True)
def test_killed_anywhere_and_run_again(name: str, database_url: str) -> None:
    env, chance = {"DATABASE_URL": database_url}, random.Random(_SEED + name)
    calls, clean = clean_run(name, env)
    for _ in range(_TIMES):
        killed_and_repeated(name, "process", chance.randint(2, calls), clean, env)


@pytest.mark.scenario
def test_the_database_is_killed_under_it(tmp_path: Path) -> None:
    names = list(WORK) if _TIMES > 1 else ["purge history", "purge room"]
    assert run_on_own_server(_SCRIPT.format(seed=_SEED, names=names, times=_TIMES), tmp_path) == "done"
