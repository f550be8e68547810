"""The pages about the HTTP API: the examples run against a real server, and the tables name what there is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection

from events.sending.send import NewEvent, create_room
from replsite.api.api import api
from replsite.api.tokens import make_token
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.wire_client import ready_ports
from tests.support.writing import linear

DOCS = PROJECT / "docs"
HOW_TO, REFERENCE = DOCS / "how-to" / "use-the-http-api.md", DOCS / "reference" / "http-api.md"
_PERMISSION = re.compile(r"`((?:events|pipeline|streams)\.\w+)`")


def operations() -> dict[str, str]:
    """Operation -> the paragraph that names its permissions, from the code."""
    found = {}
    for path, methods in api.get_openapi_schema()["paths"].items():
        for method, one in methods.items():
            found[f"{method.upper()} {path.removeprefix('/api/v1')}"] = one["description"]
    return found


def rows() -> dict[str, str]:
    """Operation -> the cell of its permissions, from the page."""
    return dict(re.findall(r"^\| `([A-Z]+ /[^`]+)` \|[^|]*\|([^|]*)\|[^|]*\|$", REFERENCE.read_text(), re.M))


def test_the_page_names_every_operation_and_its_permissions():
    told, there = rows(), operations()
    assert sorted(told) == sorted(there)
    for name, cell in told.items():
        assert set(_PERMISSION.findall(cell)) == set(_PERMISSION.findall(there[name])), name


@pytest.fixture
def shell(transactional_db, start_manage, database_url, tmp_path: Path):
    """Runs commands of the page in one shell, with a token and a server; returns what each said."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT setval(pg_get_serial_sequence('pipeline_job', 'id'), 1, false)"
        )  # the page tells of job 1
    room = create_room("@ann:site")
    room.set_state("@ann:site", "m.room.name", {"name": "The kitchen"})
    room.join("@bob:site")
    room.add([NewEvent("@ann:site", "m.room.message", {"body": f"message {n}"}) for n in range(5)])
    linear()
    text = make_token(User.objects.create_superuser("ann"), "the page", 1)[1]
    port = ready_ports(start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0"))["http"]
    manage = tmp_path / "manage.py"
    manage.write_text(f'#!/bin/sh\nexec {sys.executable} {PROJECT / "manage.py"} "$@" 2>/dev/null\n')
    manage.chmod(0o755)
    environment = {
        **os.environ, "DATABASE_URL": database_url, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "REPLSITE_WRITER": "page",
    }  # fmt: skip

    def run(commands: list[str]) -> list[str]:
        given = f"TOKEN={text} API=http://127.0.0.1:{port}/api/v1"
        script = "\n".join(
            f"{one.replace('TOKEN=rsa_… API=http://127.0.0.1:8000/api/v1', given)}\necho @@" for one in commands
        )
        done = subprocess.run(
            ["bash", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=4 * DEADLINE_SECONDS,
            check=False,
        )
        return [said.strip() for said in done.stdout.split("@@\n")]

    return run


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="no curl or jq here")
def test_the_examples_say_what_the_page_says(shell):
    commands: list[str] = []
    expected: list[str] = []
    for block in re.findall(r"```console\n(.*?)```", HOW_TO.read_text(), re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append(line[2:])
                expected.append("")
            else:
                expected[-1] = f"{expected[-1]}\n{line}".strip()
    assert len(commands) > 20
    for command, wanted, said in zip(commands, expected, shell(commands), strict=False):
        assert re.fullmatch(re.escape(wanted).replace("…", "[^∅]+"), said), f"{command}\n{said}"
