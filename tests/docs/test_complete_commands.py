"""The page about completion: its commands are run as they stand, and what it shows as completed is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS
from tests.unit.replsite.management.commands.test_completion import completed, written

PAGE = (PROJECT / "docs" / "how-to" / "complete-commands.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("shell", "file"), [("bash", ".local/share/bash-completion/completions/manage.py"), ("zsh", ".zfunc/_manage.py")]
)
def test_the_commands_of_the_page_put_the_script_there(tmp_path: Path, shell: str, file: str) -> None:
    block = next(block for block in BLOCKS if f"completion {shell}" in block)
    command = block.replace(".venv/bin/python", sys.executable)
    subprocess.run(
        ["bash", "-ec", command],
        cwd=PROJECT,
        env={**os.environ, "HOME": str(tmp_path)},
        timeout=2 * DEADLINE_SECONDS,
        check=True,
    )
    text = (tmp_path / file).read_text()
    assert "import_events" in text and "manage.py" in text


def test_what_the_page_shows_is_what_is_completed(tmp_path: Path) -> None:
    shown = re.findall(r"^\./manage\.py (.*)<Tab> +# (.*)$", PAGE, re.MULTILINE)
    assert len(shown) == 2
    script = written("bash", tmp_path)
    for typed, answer in shown:
        assert completed(script, f"manage.py {typed}") == answer.split()[-1:]
