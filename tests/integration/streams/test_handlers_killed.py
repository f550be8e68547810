"""Processes that run handlers are killed at any instruction: every fact has its effect exactly once."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from streams.models import ParkedFact
from tests.support.effects import effects, effects_table
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.warm_start import WARM
from tests.support.writing import append, ids, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)
Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with effects_table():
        yield


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Started]:
    """``start(point, *command)``: a process of ``tests.support.handler_process``."""
    started: list[subprocess.Popen[str]] = []

    def run(point: str, *command: str) -> subprocess.Popen[str]:
        process = WARM.popen(
            ("-m", "tests.support.handler_process", point, str(tmp_path), *command),
            {**os.environ, "DATABASE_URL": database_url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=2 * DEADLINE_SECONDS)
    return process.returncode, out, err


@pytest.mark.parametrize("point", ["effect", "cursor", "commit"])
def test_a_process_that_dies_there_repeats_and_loses_nothing(start, tmp_path, point):
    append(40)
    wait_for_linear(ids()[-1])
    assert ended(start(point, "runhandlers", "r", "--once"))[0] == -9
    assert (tmp_path / "killed").exists()
    assert 0 < len(effects()) < 40
    status, out, err = ended(start(point, "runhandlers", "r", "--once"))
    assert status == 0, err
    assert "parked" in out
    assert effects() == ids()


@pytest.mark.slow
def test_processes_that_are_killed_at_random_repeat_and_lose_nothing(start):
    chance = random.Random(3)
    for _ in range(5):
        process = start("never", "runhandlers", "r")
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready readers=r"
        before, deadline = len(effects()), time.monotonic() + chance.random()
        while time.monotonic() < deadline or len(effects()) == before:
            append(chance.randrange(1, 9))
        process.kill()
        process.wait()
    wait_for_linear(ids()[-1])
    status, _, err = ended(start("never", "runhandlers", "r", "--once"))
    assert status == 0, err
    assert effects() == ids()


def test_runhandlers_ends_in_order_when_told_to(start):
    process = start("never", "runhandlers", "r")
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready readers=r"
    append(3)
    wait_until(lambda: effects() == ids())
    process.terminate()
    status, out, err = ended(process)
    assert (status, out.strip()) == (0, "r: 3 facts handled, 0 parked"), err


def test_a_second_process_of_a_reader_ends_with_status_1_and_names_the_first(start):
    first = start("never", "runhandlers", "r")
    assert first.stdout is not None
    first.stdout.readline()
    status, _, err = ended(start("never", "runhandlers", "r"))
    assert status == 1
    assert f"process {first.pid} on host" in err


def test_a_reader_without_a_cursor_says_where_it_begins(start):
    """It said "0 facts handled" of a stream full of facts, and not that it begins behind them."""
    append(3)
    wait_for_linear(ids()[-1])
    status, out, err = ended(start("never", "runhandlers", "r", "late", "--once"))
    assert status == 0, err
    assert "r: reads" not in out, "it begins at the first fact"
    assert "late: reads caches for the first time, and begins now" in out
    command = "resync reader late --from caches=0"
    assert f"manage.py {command} " in out
    assert "late: 0 facts handled" in out and "r: 3 facts handled" in out
    assert ended(start("never", *command.split()))[0] == 0
    status, out, _ = ended(start("never", "runhandlers", "late", "--once"))
    assert (status, out.splitlines()) == (0, ["ready readers=late", "late: 3 facts handled, 0 parked"])


def test_parked_facts_are_listed_retried_and_dropped_by_command(start, tmp_path):
    append(3)
    wait_for_linear(ids()[-1])
    (tmp_path / "poison").touch()
    status, out, err = ended(start("never", "runhandlers", "poisoned", "--once"))
    assert (status, out.splitlines()[-1]) == (0, "poisoned: 0 facts handled, 3 parked"), err
    status, out, _ = ended(start("never", "parked", "list", "--trace"))
    assert status == 0
    assert "ValueError: poison" in out
    assert "3 facts are parked" in out
    status, _, err = ended(start("never", "parked", "retry", "poisoned", "--token", str(ids()[0])))
    assert status == 1
    assert "1 facts failed again" in err
    (tmp_path / "poison").unlink()
    assert ended(start("never", "parked", "retry", "poisoned", "--token", str(ids()[0])))[:2] == (0, "1 taken\n")
    assert ended(start("never", "parked", "drop", "poisoned"))[0] == 2
    assert ended(start("never", "parked", "drop", "poisoned", "--all"))[:2] == (0, "2 dropped\n")
    assert effects("poisoned") == ids()[:1]
    assert not ParkedFact.objects.exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("runhandlers", "nobody"), "No handler names reader 'nobody'"),
        (("parked", "retry"), "say of which reader"),
        (("parked", "retry", "nobody"), "No handler names reader 'nobody'"),
    ],
)
def test_unusable_arguments(start, command, words):
    status, _, err = ended(start("never", *command))
    assert (status, words in err) == (2, True), err


def test_without_handlers_runhandlers_says_how_to_declare_one(monkeypatch):
    monkeypatch.setattr("streams.management.commands.runhandlers.readers", list)
    with pytest.raises(CommandError, match=r"streams\.handles") as raised:
        call_command("runhandlers")
    assert raised.value.returncode == 2
