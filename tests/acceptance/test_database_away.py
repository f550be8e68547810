"""A site whose database is away says so, instead of hanging, lying or falling over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.conftest import end_process
from tests.session import PROJECT


@pytest.fixture
def ask(free_port, wait_until):
    """``ask(path)``: status and body of a site whose DATABASE_URL leads nowhere."""
    command = [sys.executable, "-m", "daphne", "-b", "127.0.0.1", "-p", str(free_port), "replsite.asgi:application"]
    environment = {**os.environ, "DATABASE_URL": "postgres://nobody:x@127.0.0.1:1/nothing"}
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)

    def get(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{free_port}{path}", timeout=15) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except urllib.error.URLError:
            return 0, ""

    wait_until(lambda: get("/health/live")[0] == 200, 60)
    yield get
    end_process(process)


def test_probes_and_metrics_answer_and_say_what_to_do(ask):
    assert ask("/health/live")[0] == 200
    for path in ("/health/ready", "/health"):
        status, body = ask(path)
        assert status == 503
        assert "Start the server, or correct DATABASE_URL." in json.loads(body)["sentence"]
    status, body = ask("/metrics")
    assert status == 200
    assert "replsite_snapshot_up 0.0" in body
    assert "replsite_stream_position" not in body
