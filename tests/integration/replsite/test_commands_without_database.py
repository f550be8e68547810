"""Every command that needs the database says in one line that it is away and what to do, with status 1.

One process asks all of them in turn: what ``manage.py`` does with its arguments is called again for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS

#: Not here: commands that wait for the database to come back (`runhandlers`, `pipeline run`, `follow`), and those that
#: have tests of their own (`serve`, `runreplication`).
LINES = [
    "append caches --count 1",
    "room archive !a:b FOLDER",
    "censor",
    "room check !a:b",
    "room check --all",
    "check_streams",
    "room compress --all",
    "explain_visibility @a:b $e",
    "jobs",
    "jobs show 1",
    "parked",
    "purge history !a:b --before $e --yes",
    "purge orphans --yes",
    "purge retention --yes",
    "purge room !a:b --yes",
    "purge stream caches --keep 7d",
    "resolve_rooms",
    "resync positions",
    "resync rooms !a:b",
    "resync user @a:b",
    "runjobs --once",
    "state_at $e",
    "streams",
    "streams abort caches",
    "timeline !a:b",
]
DRIVER = """
import contextlib, io, json, sys
import manage
for line in json.loads(sys.argv[1]):
    sys.argv, out, err = ["manage.py", *line.split()], io.StringIO(), io.StringIO()
    status = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            manage.main()
        except SystemExit as end:
            status = end.code
    if isinstance(status, str):  # what Python prints at the end of a process, with status 1
        err.write(status + chr(10))
        status = 1
    print(json.dumps([line, status, out.getvalue(), err.getvalue()]))
"""


class Ended(NamedTuple):
    """How a command ended."""

    status: int | None
    out: str
    err: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    folder: Path = tmp_path_factory.mktemp("away")
    away = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "REPLSITE_DATA_DIR": str(folder)}
    lines = [line.replace("FOLDER", str(folder)) for line in LINES]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(lines)],
        cwd=PROJECT, env={**os.environ, **away}, capture_output=True, text=True, timeout=4 * DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {line: Ended(*answer[1:]) for line, answer in zip(LINES, answers, strict=True)}


@pytest.mark.parametrize("line", LINES)
def test_a_database_that_is_away_is_one_line_with_what_to_do(ended: dict[str, Ended], line: str) -> None:
    status, out, err = ended[line]
    assert (status, out) == (1, "")
    [said] = err.splitlines()
    assert "Start it, or correct DATABASES (or DATABASE_URL)." in said and "Traceback" not in said
