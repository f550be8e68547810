"""Jobs as rows: how they run, are queued, cancelled, killed and begun again; what commands and rows tell of them."""

from __future__ import annotations

import io
import json
import signal
import sys
import textwrap
import threading
from contextlib import closing, contextmanager

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import JSONField, Value

from pipeline.models import Job, JobState
from streams.db.driver import DatabaseError, direct_connection
from streams.jobs import job_run
from streams.jobs import operation as declared
from streams.jobs import run as job_runs
from streams.jobs.errors import JobCancelled, JobLost, QueueFull, UnknownJob, UnusableArguments
from streams.jobs.operation import Operation
from streams.jobs.queue import MOST_ATTEMPTS, JobServer, requeue_killed
from streams.jobs.rows import (
    CancelOutcome,
    begin_job,
    cancel_job,
    claim_abandoned_jobs,
    claim_resumable_job,
    hold_lock,
    killed_jobs,
)
from streams.jobs.run import queue_job, run_job
from streams.jobs.view import job_views
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import cut, server_process, terminate

pytestmark = pytest.mark.django_db(transaction=True)


class Steps(Operation):
    """A kind of job that takes ``steps`` steps, and calls ``at`` before each."""

    name, help = "walk", "Take some steps."

    def __init__(self, at=lambda step: None) -> None:
        self.at = at
        self.taken = []

    def check(self, arguments):
        if not isinstance(arguments.get("steps", 3), int):
            raise UnusableArguments("steps must be a number")
        return {"steps": 3, **arguments}

    def run(self, run):
        run.store_before({"rows": 10})
        with run.stage("walk", run.arguments["steps"], "steps") as count:
            for step in range(run.arguments["steps"]):
                self.at(step)
                self.taken.append(step)
                count.add()
        run.store_after({"rows": 7})
        return {"taken": len(self.taken)}


@pytest.fixture
def kind(monkeypatch):
    """``kind(at)`` is known as the kind ``walk``."""
    monkeypatch.setattr(job_run, "_CHECK_SECONDS", 0.0)

    def known(at=lambda step: None) -> Steps:
        steps = Steps(at)
        monkeypatch.setitem(declared._operations, "walk", steps)
        return steps

    return known


def serve(*, once=True) -> JobServer:
    server = JobServer("default", io.StringIO(), lambda text: None)
    server.run(once=once)
    return server


@contextmanager
def at_work():
    """A job of another process: running, with its lock held."""
    with hold_lock("default") as lock:
        yield begin_job(lock, "walk", {"steps": 1}, "default")


def test_a_job_tells_its_figures_before_and_after_and_how_it_ended(kind):
    kind()
    assert run_job("walk", {}, stream=io.StringIO()) == {"taken": 3}
    job = Job.objects.get()
    assert (job.state, job.arguments, job.summary) == (JobState.DONE, {"steps": 3}, {"taken": 3})
    assert (job.before, job.after, job.done, job.total, job.unit) == ({"rows": 10}, {"rows": 7}, 3, 3, "steps")
    assert job.started_at <= job.finished_at
    assert job.asked_by


def test_a_job_that_begins_is_never_seen_without_its_lock():
    seen = []

    class Looking:
        """Others look at the moment at which the lock is taken."""

        def acquire(self, job):
            with closing(direct_connection("default", application_name="test")) as other, other.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pipeline_job")
                seen.append(cursor.fetchone()[0])
            return True

    begin_job(Looking(), "walk", {}, "default")
    assert seen == [0] and Job.objects.count() == 1


@pytest.mark.parametrize("word", ["a\0b", "half \udcff"])
def test_arguments_that_no_row_can_hold_are_unusable(kind, word):
    kind()
    for begin in (
        lambda told: run_job("walk", told, stream=io.StringIO()),
        lambda told: queue_job("walk", told, "ann"),
    ):
        with pytest.raises(UnusableArguments, match="hold a character"):
            begin({"why": word})
    assert not Job.objects.exists()


def test_the_lock_of_a_run_that_ended_is_free_at_once():
    """The session of the run ends later. Somebody who resumed its job meanwhile began a new one."""
    with hold_lock("default") as next_run:
        for job in range(20):
            with hold_lock("default") as lock:
                assert lock.acquire(job)
            assert next_run.acquire(job)


def test_a_job_whose_leftovers_are_being_removed_is_not_resumed_meanwhile():
    ended = Job.objects.create(kind="walk", state=JobState.FAILED, arguments={})
    with hold_lock("default") as removing, hold_lock("default") as resuming:
        assert claim_abandoned_jobs(removing, "walk", [], "default") == [ended.pk]
        assert claim_resumable_job(resuming, "walk", {}, "default") is None
    with hold_lock("default") as later:
        assert claim_resumable_job(later, "walk", {}, "default") == ended


def test_a_job_that_fails_says_why(kind):
    def fail(step):
        raise ValueError("the disk is full")

    kind(fail)
    with pytest.raises(ValueError, match="disk"):
        run_job("walk", {}, stream=io.StringIO())
    assert Job.objects.values_list("state", "error").get() == (JobState.FAILED, "the disk is full")


def test_a_job_that_its_user_interrupts_says_so(kind):
    def interrupt(step):
        raise KeyboardInterrupt

    kind(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_job("walk", {}, stream=io.StringIO())
    job = Job.objects.get()
    assert (job.state, job.error.split(".")[0]) == (JobState.FAILED, "Interrupted")


def test_unknown_kinds_and_unusable_arguments_leave_no_job(kind):
    kind()
    with pytest.raises(UnknownJob, match="walk"):
        queue_job("fly", {}, "ann")
    with pytest.raises(UnusableArguments):
        queue_job("walk", {"steps": "many"}, "ann")
    assert not Job.objects.exists()


def test_queued_jobs_are_carried_out_in_their_order(kind):
    steps = kind()
    jobs = [queue_job("walk", {"steps": number}, "ann").pk for number in (1, 2)]
    assert serve().done == 2
    assert steps.taken == [0, 0, 1]
    assert list(Job.objects.order_by("finished_at").values_list("pk", flat=True)) == jobs
    assert set(Job.objects.values_list("state", "asked_by")) == {(JobState.DONE, "ann")}


def test_a_job_that_fails_does_not_keep_the_next_one(kind):
    kind(lambda step: 1 / 0)
    queue_job("walk", {}, "ann")
    queue_job("check streams", {}, "ann")
    server = serve()
    assert (server.done, server.failed) == (1, 1)


@pytest.mark.parametrize("arguments", [["steps", 1], "steps", None])
def test_a_job_whose_arguments_are_no_object_fails_in_words(kind, arguments):
    """Such a row is none of ours; it must not keep the next one."""
    steps = kind()
    bad, good = queue_job("walk", {}, "ann"), queue_job("walk", {"steps": 1}, "ann")
    Job.objects.filter(pk=bad.pk).update(arguments=Value(arguments, JSONField()))
    server = serve()
    bad.refresh_from_db()
    assert (bad.state, bad.error) == (
        JobState.FAILED,
        f"The arguments of job {bad.pk} are no JSON object. Queue another one.",
    )
    assert (server.done, server.failed, steps.taken) == (1, 1, [0])
    assert Job.objects.get(pk=good.pk).state == JobState.DONE


def test_a_queued_job_begins_at_once_where_somebody_waits(kind):
    kind()
    server = JobServer("default", io.StringIO(), lambda text: None)
    thread = threading.Thread(target=server.run, kwargs={"once": False})
    thread.start()
    try:
        job = queue_job("walk", {}, "ann")
        wait_until(lambda: Job.objects.get(pk=job.pk).state == JobState.DONE)
    finally:
        server.stop()
        thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


def test_a_job_of_a_kind_that_only_a_newer_process_knows_waits_for_one(kind):
    """As between two versions: a process of the older one leaves it alone."""
    newer = Job.objects.create(kind="of the next version", state=JobState.QUEUED, arguments={}, asked_by="ann")
    kind()
    own = queue_job("walk", {}, "ann")
    assert serve().failed == 0
    assert Job.objects.get(pk=own.pk).state == JobState.DONE
    assert Job.objects.get(pk=newer.pk).state == JobState.QUEUED


def test_two_servers_carry_out_each_job_once(kind):
    steps = kind()
    for _ in range(6):
        queue_job("walk", {"steps": 1}, "ann")
    servers = [JobServer("default", io.StringIO(), lambda text: None) for _ in range(2)]

    def run(server):
        server.run(once=True)
        connection.close()

    threads = [threading.Thread(target=run, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert sum(server.done for server in servers) == len(steps.taken) == 6


def test_a_job_that_waits_is_cancelled_at_once(kind):
    steps = kind()
    job = queue_job("walk", {}, "ann")
    assert cancel_job(job.pk, "bob", "default") is CancelOutcome.CANCELLED
    assert serve().done == 0
    assert steps.taken == []
    assert cancel_job(job.pk, "bob", "default") is CancelOutcome.OVER


def test_a_job_at_work_ends_at_its_next_step(kind):
    def cancel(step):
        if step == 1:
            assert cancel_job(Job.objects.get().pk, "bob", "default") is CancelOutcome.ASKED

    steps = kind(cancel)
    with pytest.raises(JobCancelled, match="bob"):
        run_job("walk", {"steps": 100}, stream=io.StringIO())
    assert steps.taken == [0, 1]
    job = Job.objects.get()
    assert (job.state, job.cancel_asked_by) == (JobState.CANCELLED, "bob")
    assert job.finished_at is not None


def test_a_living_job_is_never_taken_for_a_killed_one():
    with at_work() as job:
        assert killed_jobs("default") == set()
        assert cancel_job(job.pk, "bob", "default") is CancelOutcome.ASKED
    wait_until(lambda: killed_jobs("default") == {job.pk})
    assert job_views(10, "default")[0].word == "killed"


def test_a_killed_job_is_cancelled_at_once():
    with at_work() as job:
        pass
    wait_until(lambda: killed_jobs("default"))
    assert cancel_job(job.pk, "bob", "default") is CancelOutcome.CANCELLED
    assert Job.objects.get().state == JobState.CANCELLED


def asked_and_killed() -> Job:
    """A job that was killed after it was asked to end, and before its next step."""
    with at_work() as job:
        assert cancel_job(job.pk, "bob", "default") is CancelOutcome.ASKED
    wait_until(lambda: killed_jobs("default"))
    return job


def test_a_resumed_job_is_not_ended_by_a_request_of_before(kind):
    steps, job = kind(), asked_and_killed()
    assert run_job("walk", {"steps": 1}, stream=io.StringIO(), resume=True) == {"taken": 1}
    assert steps.taken == [0]
    assert Job.objects.values_list("pk", "state", "cancel_asked_by").get() == (job.pk, JobState.DONE, "")


class Between:
    """A lock, before which something else happens between the list of jobs and the lock."""

    def __init__(self, lock, happens) -> None:
        self._lock, self._happens = lock, happens
        self.release = lock.release

    def acquire(self, job):
        self._happens(job)
        return self._lock.acquire(job)


def test_a_request_that_comes_while_a_job_is_resumed_holds():
    job = asked_and_killed()
    with hold_lock("default") as lock:
        late = Between(lock, lambda number: Job.objects.filter(pk=number).update(cancel_asked_by="eve"))
        assert claim_resumable_job(late, "walk", {"steps": 1}, "default") == job
    assert Job.objects.get().cancel_asked_by == "eve"


def test_a_job_that_another_process_has_resumed_and_done_meanwhile_is_not_resumed_again():
    job = asked_and_killed()
    with hold_lock("default") as lock:
        late = Between(lock, lambda number: Job.objects.filter(pk=number).update(state=JobState.DONE))
        assert claim_resumable_job(late, "walk", {"steps": 1}, "default") is None
        assert not killed_jobs("default") and lock.acquire(job.pk)
    assert Job.objects.get().state == JobState.DONE


def test_no_process_takes_a_job_over_while_it_is_being_cancelled():
    job, found = asked_and_killed(), []

    def resume():
        with hold_lock("default") as lock:
            found.append(claim_resumable_job(lock, "walk", {"steps": 1}, "default"))
        connection.close()

    resuming = threading.Thread(target=resume)
    with transaction.atomic():
        assert cancel_job(job.pk, "bob", "default") is CancelOutcome.CANCELLED
        resuming.start()
        resuming.join(DEADLINE_SECONDS)
        assert found == [None], "it found the job locked, and did not wait for its row"
    assert Job.objects.get().state == JobState.CANCELLED


def test_a_queued_job_that_was_asked_to_end_and_killed_is_not_begun_again(kind):
    steps, job = kind(), queue_job("walk", {}, "ann")
    killed(job, 1)
    Job.objects.filter(pk=job.pk).update(cancel_asked_by="bob")
    assert serve().done == 0
    assert steps.taken == []
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED and job.finished_at is not None


def test_a_job_is_done_and_its_rows_are_counted_or_neither(kind):
    kind()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE streams_wirecount ADD CONSTRAINT no_counts CHECK (kind <> 'job rows')")
    try:
        with pytest.raises(IntegrityError):
            run_job("walk", {}, stream=io.StringIO())
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE streams_wirecount DROP CONSTRAINT no_counts")
    job = Job.objects.get()
    assert job.state == JobState.FAILED and "no_counts" in job.error


def test_an_unknown_job_cannot_be_cancelled():
    with pytest.raises(UnknownJob, match="4711"):
        cancel_job(4711, "bob", "default")


def killed(job: Job, attempts: int) -> None:
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING, attempts=attempts)


def test_a_queued_job_that_was_killed_is_begun_again(kind):
    steps = kind()
    job = queue_job("walk", {}, "ann")
    killed(job, 1)
    assert serve().done == 1
    assert steps.taken == [0, 1, 2]
    assert Job.objects.get().attempts == 2


def test_a_job_that_is_killed_again_and_again_is_given_up(kind):
    kind()
    killed(queue_job("walk", {}, "ann"), MOST_ATTEMPTS)
    assert serve().done == 0
    job = Job.objects.get()
    assert (job.state, job.error) == (JobState.FAILED, "killed 3 times")


def test_a_job_that_a_command_began_is_not_begun_again_by_the_queue():
    with at_work():
        pass
    wait_until(lambda: killed_jobs("default"))
    with hold_lock("default") as lock:
        assert requeue_killed(lock, "default") == []
    assert Job.objects.get().state == JobState.RUNNING


def test_figures_of_before_stay_when_a_job_goes_on(kind):
    kind()
    job = queue_job("walk", {}, "ann")
    Job.objects.filter(pk=job.pk).update(before={"rows": 99})
    serve()
    assert Job.objects.get().before == {"rows": 99}


# --- processes that are told to end, and databases that are started anew ------------------------------------------


def test_a_job_whose_process_is_told_to_end_is_queued_again_and_that_is_no_attempt(kind):
    server = JobServer("default", io.StringIO(), lambda text: None)
    steps = kind(lambda step: server.stop() if step == 1 else None)
    queue_job("walk", {"steps": 5}, "ann")
    server.run(once=True)
    assert (steps.taken, server.done, server.failed) == ([0, 1], 0, 0)
    assert Job.objects.values_list("state", "attempts", "error").get() == (JobState.QUEUED, 0, "")
    steps.at = lambda step: None
    assert serve().done == 1
    assert Job.objects.get().state == JobState.DONE


def test_cancelling_wins_over_the_end_of_the_process(kind):
    server = JobServer("default", io.StringIO(), lambda text: None)

    def end(step):
        cancel_job(Job.objects.get().pk, "bob", "default")
        server.stop()

    kind(end)
    queue_job("walk", {"steps": 5}, "ann")
    server.run(once=True)
    assert Job.objects.get().state == JobState.CANCELLED


def test_a_job_that_has_lost_its_lock_is_left_to_the_next_process(kind):
    steps = kind(lambda step: cut("replsite job") if step == 1 else None)
    queue_job("walk", {"steps": 5}, "ann")
    with pytest.raises(DatabaseError):
        serve()
    assert steps.taken == [0, 1]
    assert job_views(1, "default")[0].word == "killed"
    steps.at = lambda step: None
    assert serve().done == 1
    assert Job.objects.values_list("state", "attempts").get() == (JobState.DONE, 2)


def test_a_command_that_has_lost_its_lock_says_so_in_its_row(kind):
    kind(lambda step: cut("replsite job"))
    with pytest.raises(JobLost, match="another process"):
        run_job("walk", {"steps": 5}, stream=io.StringIO())
    job = Job.objects.get()
    assert job.state == JobState.FAILED and "lost its lock" in job.error


def test_a_run_that_is_late_does_not_write_over_the_next_one(kind):
    kind(lambda step: Job.objects.update(attempts=7))
    with pytest.raises(JobLost, match="meanwhile"):
        run_job("walk", {"steps": 1}, stream=io.StringIO())
    assert Job.objects.values_list("state", "summary").get() == (JobState.RUNNING, None)


def test_jobs_go_on_after_the_database_was_started_anew(kind):
    pids: list[int] = []
    went_on = threading.Event()
    steps = kind(lambda step: pids.append(server_process()) or went_on.wait(DEADLINE_SECONDS))
    server = JobServer("default", io.StringIO(), lambda text: None)
    thread = threading.Thread(target=server.run, kwargs={"once": False})
    thread.start()
    try:
        job = queue_job("walk", {"steps": 2}, "ann")
        wait_until(lambda: pids)
        steps.at = lambda step: None
        cut("%replsite job%")
        terminate(pids[0])
        went_on.set()
        wait_until(lambda: Job.objects.get(pk=job.pk).state == JobState.DONE)
    finally:
        went_on.set()
        server.stop()
        thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert Job.objects.get().attempts == 2


def test_no_more_jobs_wait_than_may(kind, monkeypatch):
    kind()
    monkeypatch.setattr(job_runs, "MOST_QUEUED", 2)
    for _ in range(2):
        queue_job("walk", {}, "ann")
    with pytest.raises(QueueFull, match="runjobs"):
        queue_job("walk", {}, "ann")
    assert serve().done == 2
    queue_job("walk", {}, "ann")


def test_arguments_beyond_all_measure_are_refused(kind):
    kind()
    with pytest.raises(UnusableArguments, match="100,000"):
        queue_job("walk", {"why": "x" * 100_001}, "ann")


# --- commands -----------------------------------------------------------------------------------------------------


def test_the_command_queues_lists_and_runs(run_manage):
    done = run_manage("jobs", "queue", "check streams")
    assert (done.returncode, "is queued" in done.stdout) == (0, True), done.stderr
    done = run_manage("runjobs", "--once")
    assert (done.returncode, "done in" in done.stdout) == (0, True), done.stderr
    listed = json.loads(run_manage("jobs", "--json").stdout)
    assert (listed["state"], listed["kind"], listed["summary"]["wrong"]) == ("done", "check streams", {})
    assert listed["summary"]["streams"] >= 16


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["cancel", "99"], 1, "no job 99"),
        (["show", "99"], 1, "no job 99"),
        (["queue", "fly"], 2, "no kind"),
        (["queue", "censor", "{"], 2, "no JSON"),
        (["queue", "censor", "[" * 100_000], 2, "nested deeper"),
        (["cancel", "9" * 30], 1, "no job 999"),
        (["queue", "censor", '{"days": -1}'], 2, "days"),
        (["queue", "censor", '{"weeks": 1}'], 2, "weeks"),
        (["--limit", "0"], 2, "--limit"),
    ],
)
def test_what_the_command_cannot_do_is_said_in_one_line(arguments, status, said):
    with pytest.raises(CommandError, match=said) as raised:
        call_command("jobs", *arguments)
    assert raised.value.returncode == status


def test_the_command_shows_all_that_is_known_of_a_job(kind):
    kind()
    run_job("walk", {}, stream=io.StringIO())
    out = io.StringIO()
    call_command("jobs", "show", str(Job.objects.get().pk), stdout=out)
    lines = out.getvalue().splitlines()
    assert "state      done" in lines
    assert any(line.split() == ["rows", "10", "->", "7", "(-3)"] for line in lines)
    out = io.StringIO()
    call_command("jobs", "show", str(Job.objects.get().pk), "--json", stdout=out)
    assert json.loads(out.getvalue())["after"] == {"rows": 7}


_KILLED_AT_WORK = textwrap.dedent("""
    import io, sys
    import django
    django.setup()
    from streams.jobs.operation import Operation, register
    from streams.jobs.queue import JobServer

    class Sleep(Operation):
        name = "sleep"
        def check(self, arguments): return arguments
        def run(self, run):
            print("begun", flush=True)
            sys.stdin.read()
    register(Sleep())
    JobServer("default", io.StringIO(), lambda text: None).run(once=True)
""")


def test_kill_nine_of_the_process_leaves_a_job_that_the_next_one_does(monkeypatch, database_url):
    import os
    import subprocess

    steps = Steps()
    monkeypatch.setitem(declared._operations, "sleep", steps)
    queue_job("sleep", {"steps": 1}, "ann")
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED_AT_WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "replsite.settings"},
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: killed_jobs("default"))
    assert serve().done == 1
    assert steps.taken == [0]
