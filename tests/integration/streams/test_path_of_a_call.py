"""``script/path_of_a_call.py`` counts what a call runs through."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from streams.core.tokens import VectorToken
from streams.runtime import text
from tests.support.scripts import load_script
from tests.support.session import PROJECT

script = load_script("path_of_a_call")
PROGRAM = PROJECT / "script" / "path_of_a_call.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=False)


def test_calls_of_the_rooms_are_counted_in_order() -> None:
    def work() -> None:
        token = VectorToken.of(1, {"main": 2})
        text.safe_text("a")
        token.covers("main", 2)

    path = script.path_of(work)
    assert path.files[0] == "streams/core/tokens.py" and set(path.files) >= {"streams/runtime/text.py"}
    functions = [function for _, function in path.calls]
    assert functions.index("VectorToken.of") < functions.index("VectorToken.covers")
    assert path.changes >= 2
    assert sys.getprofile() is None


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, object]]:
    done = run("--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("call", "begin"), [("append", "streams/stream_object.py"), ("persist", "events/persist/batch.py")]
)
def test_a_path_begins_at_the_call_and_is_counted(figures, call, begin) -> None:
    found = figures[call]
    assert found["files"][0] == begin and "streams/writing/append.py" in found["files"]
    assert 1 < len(found["files"]) < min(found["changes"], found["calls"])


def test_text_names_the_functions_of_each_file() -> None:
    done = run("append")
    assert done.returncode == 0, done.stderr
    first, *files = done.stdout.splitlines()
    assert first.startswith("append: ") and first.endswith(" calls") and "changes of file" in first
    assert files[0].startswith("  streams/stream_object.py: Stream.append")


def test_an_unknown_call_is_refused() -> None:
    done = run("fly")
    assert done.returncode == 2 and "there are append, persist" in done.stderr
