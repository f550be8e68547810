"""At a terminal a purge says what goes and asks; a script is not asked."""

from __future__ import annotations

import argparse
import io
import os
import pty
import signal
import subprocess
import time

import pytest

from events.models import Event, Room
from pipeline.models import Job
from streams.catalog.models import CacheInvalidation
from streams.jobs.command import command_lines
from streams.jobs.run import queue_job, run_job
from tests.integration.events.test_purging import middle, talked_room
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append

pytestmark = pytest.mark.django_db(transaction=True)
OWN_WRITER = {"REPLSITE_WRITER": "purge-{n}"}


@pytest.fixture
def cut():
    made = talked_room(12)
    return made.room_id, ["--before-token", f"t{middle(made.room_id, 0.5)}-0", "--delete-local"]


@pytest.fixture
def at_terminal(start_manage, tmp_path):
    """``at_terminal(answer, *arguments)``: exit status, and what was said on standard error."""

    def run(answer, *arguments):
        ours, theirs = pty.openpty()
        said = tmp_path / "said"
        with said.open("wb") as file:
            process = start_manage(*arguments, env=OWN_WRITER, stdin=theirs, stdout=subprocess.DEVNULL, stderr=file)
        os.close(theirs)
        try:
            if answer is not None:
                wait_until(lambda: b"[y/N]" in said.read_bytes() or process.poll() is not None)
                os.write(ours, answer)
            return process.wait(DEADLINE_SECONDS), said.read_text()
        finally:
            os.close(ours)

    return run


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"yess\n", b"\x04"])
def test_what_is_not_confirmed_is_not_deleted(cut, at_terminal, answer):
    room_id, options = cut
    before = Event.objects.count()
    status, said = at_terminal(answer, "purge", "history", room_id, *options)
    assert status == 1 and "Nothing was deleted." in said
    assert f"{room_id}: messages below token {options[1]}, those of this server too: " in said
    assert "would be deleted, " in said and "; no archive" in said
    assert Event.objects.count() == before
    assert {job.arguments["dry_run"] for job in Job.objects.all()} == {True}


def test_what_is_confirmed_is_deleted(cut, at_terminal):
    room_id, options = cut
    before = Event.objects.filter(outlier=False).count()
    status, said = at_terminal(b"y\n", "purge", "history", room_id, *options)
    assert status == 0, said
    assert Event.objects.filter(outlier=False).count() < before
    assert said.count("those of this server too") == 3  # foreseen twice, by its job and the question, and done


def test_yes_is_not_asked(cut, at_terminal):
    room_id, _ = cut
    status, said = at_terminal(None, "purge", "room", room_id, "--force", "--yes")
    assert status == 0 and "[y/N]" not in said and not Room.objects.exists()
    assert f"{room_id}: the whole room with " in said


def test_a_room_is_asked_about(cut, at_terminal):
    room_id, _ = cut
    status, said = at_terminal(b"n\n", "purge", "room", room_id, "--force")
    assert status == 1 and "events: would be deleted; no archive" in said and Room.objects.exists()


def rows_of_all():
    counted = (Event, CacheInvalidation)
    return {model.__name__: model.objects.count() for model in counted}


@pytest.fixture
def something_of_all(cut):
    """Something for each of these subjects to delete."""
    append(3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["retention"], "events would be deleted"),
        (["orphans"], "of their rows would be deleted"),
        (["stream", "caches", "--keep", "0", "--horizon", "0s"], "rows would be deleted"),
    ],
)
def test_each_purge_asks(something_of_all, at_terminal, arguments, words):
    before = rows_of_all()
    status, said = at_terminal(b"n\n", "purge", *arguments)
    assert status == 1 and words in said and "Nothing was deleted." in said
    assert rows_of_all() == before


def test_no_purge_is_without_the_option():
    without = []
    for what, subject in command_lines("purge").items():
        parser = argparse.ArgumentParser()
        subject.add_arguments(parser)
        without += [what] if "--yes" not in parser.format_help() else []
    assert without == [] and len(command_lines("purge")) >= 6


def test_an_interrupt_at_the_question_deletes_nothing(cut, start_manage, tmp_path):
    room_id, options = cut
    ours, theirs = pty.openpty()
    said = tmp_path / "said"
    with said.open("wb") as file:
        process = start_manage(
            "purge", "history", room_id, *options, stdin=theirs, stdout=subprocess.DEVNULL, stderr=file
        )
    wait_until(lambda: b"[y/N]" in said.read_bytes())
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_SECONDS) != 0
    os.close(ours)
    os.close(theirs)
    assert {job.arguments["dry_run"] for job in Job.objects.all()} == {True}


@pytest.mark.parametrize("more", [[], ["--yes"]])
def test_without_a_terminal_it_goes_on_and_says_so(cut, run_manage, more):
    room_id, options = cut
    done = run_manage("purge", "history", room_id, *options, *more, env=OWN_WRITER)
    assert done.returncode == 0 and f"{room_id}: messages below token" in done.stdout
    assert ("Deleting without a question" in done.stderr) is (not more)


def test_a_dry_run_is_no_question(cut, at_terminal):
    room_id, options = cut
    status, said = at_terminal(None, "purge", "history", room_id, *options, "--dry-run")
    assert status == 0 and "[y/N]" not in said


def test_the_jobs_log_has_the_words(cut):
    room_id, options = cut
    stream = io.StringIO()
    run_job("purge history", {"room": room_id, "before_token": options[1], "delete_local": True}, stream=stream)
    (line,) = [line for line in stream.getvalue().splitlines() if "kept as outliers" in line]
    assert f"{room_id}: messages below token {options[1]}, those of this server too: " in line and line.endswith(
        "; no archive"
    )


def test_a_queued_age_is_the_time_when_it_was_queued(cut):
    before = time.time_ns() // 1_000_000 - 86_400_000
    told = queue_job("purge history", {"room": cut[0], "before_time": "1d"}, "ann").arguments["before_time"]
    assert before <= told <= time.time_ns() // 1_000_000 - 86_400_000
