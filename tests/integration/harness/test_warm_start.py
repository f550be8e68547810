"""Commands that are forked from a process with Django loaded do what those in an interpreter of their own do."""

from __future__ import annotations

import os
import signal
import subprocess
from uuid import uuid4

import psutil
import pytest
from django.db.backends.postgresql.base import Database

from streams.catalog.models import CacheInvalidation
from tests.support import warm_start
from tests.support.waiting import DEADLINE_SECONDS

fork = warm_start._Forking.fork
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _asked_before(run_manage) -> None:
    """So that what a test starts is forked."""
    run_manage("help")


COMMANDS = [
    ("append", "caches", "--count", "3", "--json"),
    ("append", "nosuch"),
    ("nosuch",),
    ("shell", "-v", "0", "-c", "import sys; sys.exit(7)"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_it_ends_like_a_cold_start(run_manage, command):
    warm = run_manage(*command)
    cold = run_manage(*command, env={"UNUSED": str(uuid4())})
    assert (warm.returncode, warm.stderr) == (cold.returncode, cold.stderr)
    assert len(warm.stdout.splitlines()) == len(cold.stdout.splitlines())
    assert CacheInvalidation.objects.count() == (6 if warm.returncode == 0 else 0)


def test_it_is_a_child_of_the_test_in_a_session_of_its_own(start_manage):
    process = start_manage("shell", "-v", "0", "-c", "import os; print(os.getpid(), os.getsid(0), flush=True); input()",
                           stdin=subprocess.PIPE)  # fmt: skip
    number = int(process.stdout.readline().split()[1])
    assert number == process.pid and psutil.Process(number).ppid() == os.getpid()
    process.stdin.close()
    assert process.wait(DEADLINE_SECONDS) == 1


def test_it_has_no_descriptor_but_its_own(run_manage):
    done = run_manage("shell", "-v", "0", "-c", "import os; print(sorted(os.listdir('/proc/self/fd'), key=int))")
    assert done.stdout.strip() in (
        "['0', '1', '2', '3']",
        "['0', '1', '2', '3', '4']",
    )  # the folder that is listed, and one


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_it_ends_a_cold_start(start_manage, sent):
    code = "import time; print(1, flush=True); time.sleep(60)"
    both = [start_manage("shell", "-v", "0", "-c", code, env=env) for env in ({}, {"UNUSED": str(uuid4())})]
    for process in both:
        assert process.stdout.readline() == "1\n"
        process.send_signal(sent)
    assert both[0].wait(DEADLINE_SECONDS) == both[1].wait(DEADLINE_SECONDS) != 0


def test_every_environment_has_settings_of_its_own(run_manage, monkeypatch):
    monkeypatch.setattr(warm_start, "_MOST_FORKING", 1)
    show = ("shell", "-v", "0", "-c", "from django.conf import settings; print(settings.REPLSITE_METRICS_HOST)")
    names = [f"{name}.example" for name in "aabba"]
    assert [run_manage(*show, env={"REPLSITE_METRICS_HOST": name}).stdout.strip() for name in names] == names


def test_what_is_asked_for_once_is_forked_too_and_has_settings_of_its_own(run_manage, database_url, monkeypatch):
    made = []
    monkeypatch.setattr(warm_start._Forking, "fork", lambda *given: made.append(given[0]) or fork(*given))
    code = "import os; from django.conf import settings as s; print(s.REPLSITE_METRICS_HOST, sorted(os.environ))"
    for name in (f"{uuid4()}.example", f"{uuid4()}.example"):
        env = {"REPLSITE_METRICS_HOST": name}
        forked = run_manage("shell", "-v", "0", "-c", code, env=env).stdout
        cold = warm_start.cold_start(
            ("shell", "-v", "0", "-c", code), {**os.environ, **env, "DATABASE_URL": database_url}, stdout=subprocess.PIPE
        ).communicate(timeout=DEADLINE_SECONDS)[0]  # fmt: skip
        assert forked.startswith(f"{name} [") and forked == cold
    assert len(made) == 2 and set(made) == {warm_start._LIBRARIES._forking}


def test_with_a_variable_that_a_library_may_have_read_it_is_a_cold_start(run_manage, monkeypatch):
    monkeypatch.setattr(warm_start._Forking, "fork", lambda *given: pytest.fail("forked"))
    show = ("shell", "-v", "0", "-c", "import sys; print(sys.dont_write_bytecode)")
    for _ in range(2):
        assert run_manage(*show, env={"PYTHONDONTWRITEBYTECODE": "1", "UNUSED": str(uuid4())}).stdout == "True\n"


def test_what_reads_the_settings_is_loaded_in_the_process_that_is_forked(run_manage):
    code = "import sys; sys.stdout.write(' '.join(sys.modules))"
    process = warm_start.WARM.popen(
        ("-c", code), {**os.environ, "REPLSITE_METRICS_HOST": str(uuid4())}, stdout=subprocess.PIPE
    )
    loaded = process.communicate(timeout=DEADLINE_SECONDS)[0].split()
    assert {"django.db.models", Database.__name__, "streams.core.tokens"} <= set(loaded)
    assert not {"replsite.settings", "streams.models", "django.contrib.auth.models", "twisted.internet.reactor"} & set(
        loaded
    )


def test_a_variable_that_is_read_late_needs_no_process_of_its_own(run_manage, monkeypatch):
    made = []
    monkeypatch.setattr(warm_start._Forking, "fork", lambda *given: made.append(given[0]) or fork(*given))
    show = ("shell", "-v", "0", "-c", "import os; print(os.environ.get('SKEW_SECONDS'))")
    late = [{"SKEW_SECONDS": "5"}, {"SKEW_SECONDS": "-7"}, {}]
    assert [run_manage(*show, env=one).stdout.strip() for one in late] == ["5", "-7", "None"]
    assert len(made) == 3 and len(set(made)) == 1


def test_settings_of_streams_are_read_late_and_are_those_of_a_cold_start(run_manage, monkeypatch):
    made = []
    monkeypatch.setattr(warm_start._Forking, "fork", lambda *given: made.append(given[0]) or fork(*given))
    code = "from django.conf import settings as s; from streams.conf import stream_settings as t; print(t(), s.REPLSITE_WRITER)"
    given = {"REPLSITE_WRITER": "here", "REPLSITE_PLAIN_NETWORKS": "10.0.0.0/8", "REPLSITE_WRITERS": '{"caches": ["x"]}',
             "REPLSITE_CLOSE_LIMIT_SECONDS": "1.5", "REPLSITE_CONNECTION_LIMIT": "7"}  # fmt: skip
    for env in (given, {}, {"REPLSITE_CONNECTION_LIMIT": "8"}):
        warm = run_manage("shell", "-v", "0", "-c", code, env=env)
        cold = run_manage("shell", "-v", "0", "-c", code, env={**env, "UNUSED": str(uuid4())})
        assert (warm.stdout, warm.stderr) == (cold.stdout, cold.stderr)
        assert all(repr(name) in warm.stdout for name in env.get("REPLSITE_PLAIN_NETWORKS", "").split(",") if name)
    assert len(made) == 3 and len(set(made)) == 1


def test_input_is_its_standard_input(run_manage):
    assert run_manage("shell", "-v", "0", "-c", "print(input()[::-1])", input="abc\n").stdout == "cba\n"


def test_a_module_and_a_script_are_forked_too_and_end_like_cold_ones():
    for arguments, status, said in (
        (("-c", "import sys; print(sys.argv); sys.exit(3)", "one"), 3, "['-c', 'one']\n"),
        (("-m", "tests.support.room_talker", "warm"), 0, ""),
    ):
        for begin in (warm_start.WARM.popen, warm_start.cold_start):
            process = begin(arguments, os.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            assert (process.communicate(timeout=DEADLINE_SECONDS)[0], process.returncode) == (said, status)
