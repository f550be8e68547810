"""``manage.py follow --catch-up http``: a follower without the database against a server process over TCP and HTTP."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from django.db import connection

from streams.catalog.models import CacheInvalidation
from streams.models import StreamPosition
from tests.support.scripted_http import scripted_http
from tests.support.waiting import wait_until
from tests.support.warm_start import WARM
from tests.support.wire_client import ready_ports
from tests.support.writing import append, fact, stored, stream

pytestmark = pytest.mark.django_db(transaction=True)
BEHIND = 100_000
NOWHERE = "postgres://nobody:none@127.0.0.1:1/none"


def far_ahead(count: int) -> int:
    """So many facts, as a writer of long ago would have left them; the last token."""
    last = count + 1
    with connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name, keys) "
            "SELECT n, CASE WHEN n %% 3 = 0 THEN 'north' ELSE 'south' END, 'c', ARRAY['k' || n] "
            "FROM generate_series(2, %s) AS n",
            [last],
        )
        cursor.execute("SELECT setval(%s, %s)", [stream().declaration.sequence, last])
    for writer in ("north", "south"):
        StreamPosition.objects.create(stream="caches", instance_name=writer, position=last, state="active")
    return last


def serve(start_manage, **env: str) -> dict[str, int]:
    return ready_ports(start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env=env))


def follow_arguments(ports: dict[str, int], *more: str) -> list[str]:
    address = f"tcp://127.0.0.1:{ports['replication']}"
    url = f"http://127.0.0.1:{ports['http']}"
    return ["follow", address, "--streams", "caches", "--catch-up", "http", "--catch-up-url", url, "--json", *more]


def follow(arguments: list[str], timeout: float = 150.0) -> subprocess.CompletedProcess[str]:
    """The command without a database that it could reach."""
    command = (*arguments, "--timeout", str(timeout))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with WARM.popen(command, {**os.environ, "DATABASE_URL": NOWHERE}, **pipes) as process:
        try:
            out, err = process.communicate(timeout=timeout + 30)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def rows_of(done: subprocess.CompletedProcess[str]) -> list[tuple]:
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(row["token"], row["instance"], *row["row"]) for row in found]


def rows_of_table(after: int = 1) -> list[tuple]:
    facts = CacheInvalidation.objects.filter(stream_id__gt=after).order_by("stream_id")
    return list(facts.values_list("stream_id", "instance_name", "cache_name", "keys", "invalidation_ts"))


@pytest.mark.parametrize("view", ["writer", pytest.param("linear", marks=pytest.mark.scenario)])
def test_a_follower_far_behind_without_the_database_equals_the_table(start_manage, view):
    last = far_ahead(BEHIND)
    ports = serve(start_manage)
    until = ["--from", "caches=1", "--until", f"caches={last}", "--view", view]
    done = follow(follow_arguments(ports, *until))
    assert done.returncode == 0, done.stderr
    got = rows_of(done)
    assert (got if view == "linear" else sorted(got)) == rows_of_table()
    for writer in ("north", "south"):
        own = [row[0] for row in got if row[1] == writer]
        assert own == sorted(own)


def test_a_row_longer_than_a_line_comes_over_http(start_manage):
    ports = serve(start_manage)
    start = append()[0]
    append()
    stream().append(fact("x" * 20_000))
    last = append()[0]
    wait_until(lambda: stored()["master"].position >= last)
    done = follow(follow_arguments(ports, "--from", f"caches={start}", "--until", f"caches={last}"))
    assert done.returncode == 0, done.stderr
    assert rows_of(done) == rows_of_table(start)


def test_the_secret_is_shown_from_a_file(start_manage, tmp_path):
    last = far_ahead(10)
    ports = serve(start_manage, REPLSITE_REPLICATION_SECRET="s3cret")
    (tmp_path / "secret").write_text("s3cret\n")
    arguments = follow_arguments(ports, "--from", "caches=1", "--until", f"caches={last}")
    with_secret = follow([*arguments, "--secret-file", str(tmp_path / "secret")])
    assert (with_secret.returncode, len(rows_of(with_secret))) == (0, 10), with_secret.stderr
    without = follow(arguments)
    assert without.returncode == 1
    assert "401" in without.stderr
    assert "--secret-file" in without.stderr


def test_a_refused_gap_ends_the_follower_by_name(start_manage):
    last = far_ahead(10)
    ports = serve(start_manage)
    body = json.dumps({"errcode": "REPLSITE_RESYNC_NEEDED", "error": "resync needed: trimmed"}).encode()
    with scripted_http((410, body)) as gone:
        arguments = follow_arguments(ports, "--from", "caches=1", "--until", f"caches={last}")
        done = follow([*arguments[:6], "--catch-up-url", gone.url, *arguments[8:]])
    assert done.returncode == 1
    assert "resync needed" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--catch-up", "http"], "--catch-up-url"),
        (["--catch-up-url", "http://a"], "belong to --catch-up http"),
        (["--catch-up", "http", "--catch-up-url", "nonsense"], "http://HOST:PORT"),
        (["--catch-up", "http", "--catch-up-url", "http://a", "--secret-file", "/nonexistent"], "cannot be read"),
    ],
)
def test_arguments_that_cannot_be(options, told):
    done = follow(["follow", "tcp://127.0.0.1:1", *options])
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
