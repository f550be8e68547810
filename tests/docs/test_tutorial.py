"""The tutorial, followed to the letter in a project of its own: its files are written, its commands run as they stand."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.conf import on_this_host
from tests.support.session import PROJECT, python_path
from tests.support.waiting import DEADLINE_SECONDS

PAGE = PROJECT / "docs" / "tutorial" / "first-stream.md"
FILES = ("mysite/settings.py", "shop/models.py", "append.py", "read.py", "shop/handlers.py")


class Newcomer:
    """Somebody who has installed the packages, and nothing else: no settings, no database server."""

    def __init__(self, folder: Path, programs: Path | None = None) -> None:
        """``programs``: those of an environment with the wheel; else the checkout is used."""
        self.folder = folder
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(("REPLSITE", "DATABASE", "DJANGO"))
        }
        path = f"{programs or Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = own | {"PATH": path} | ({} if programs else {"PYTHONPATH": python_path(PROJECT)})
        if programs:
            self.environment.pop("PYTHONPATH", None)
        self.is_checkout = programs is None
        self.files = list(FILES)
        self.said = ""

    def do(self, language: str, block: str) -> None:
        """What the page asks for with a block."""
        if language == "python":
            file = self.files.pop(0)  # the settings get more lines, all other files are new
            with (self.folder / file).open("a" if file.endswith("settings.py") else "w") as opened:
                opened.write(block)
                if file.endswith("settings.py") and self.is_checkout:  # which has its migrations elsewhere
                    opened.write("\nfrom migrations import MIGRATION_MODULES\n")
        elif language == "sh":
            self.said = self.run(block)
        else:
            assert (language, self.said) == ("text", block)

    def run(self, script: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", script],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)


def follow_the_page(newcomer: Newcomer) -> None:
    """Does what the page says, up to its last block."""
    for language, block in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.S):
        newcomer.do(language, block)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """Has done what the page says, up to its last block."""
    made = Newcomer(tmp_path_factory.mktemp("newcomer"))
    try:
        follow_the_page(made)
        yield made
    finally:
        made.run("python manage.py postgres stop")


def test_every_file_and_command_of_the_page_works(newcomer: Newcomer) -> None:
    assert newcomer.files == []
    assert "orders" in newcomer.said  # the last command shows the streams


def test_following_prints_what_the_page_says(newcomer: Newcomer) -> None:
    (shown,) = re.findall(r"`(\{.*\})`", PAGE.read_text())
    with newcomer.start("runreplication", "--bind", "127.0.0.1:0") as server:
        try:
            address = (server.stdout.readline() if server.stdout else "").split("=")[1].strip()
            newcomer.run("python manage.py shell -v 0 < append.py")
            follow = f"follow tcp://{address} --json --from orders=4 --until orders=7 --view linear --timeout 60"
            said = newcomer.run(f"python manage.py {follow}").splitlines()
        finally:
            server.terminate()
    assert said[0] == shown.replace("laptop", on_this_host("{host}"))
    assert len(said) == 3
