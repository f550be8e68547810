"""The scripts of ``manage.py completion``, read and used by real shells."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from replsite.management.commands.completion import own_commands, whole_parser
from tests.support.waiting import DEADLINE_SECONDS


def written(shell: str, folder: Path) -> Path:
    out = StringIO()
    call_command("completion", shell, stdout=out)
    script = folder / f"complete.{shell}"
    script.write_text(out.getvalue())
    return script


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written("bash", tmp_path_factory.mktemp("completion"))


def completed(script: Path, typed: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = typed.split(" ")
    code = f"""
        source {shlex.quote(str(script))}
        function=$(complete -p manage.py | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        COMP_WORDS=({" ".join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1}
        $function
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_are_completed(bash_script: Path) -> None:
    assert completed(bash_script, "manage.py import") == ["import_events"]
    assert set(completed(bash_script, "manage.py ")) >= set(own_commands())


def test_subjects_are_completed(bash_script: Path) -> None:
    assert completed(bash_script, "manage.py purge o") == ["orphans"]


def test_actions_are_completed(bash_script: Path) -> None:
    assert completed(bash_script, "manage.py streams re") == ["retire"]


@pytest.mark.parametrize(
    ("typed", "option"),
    [
        ("purge stream --k", "--keep"),
        ("follow --rec", "--record"),
        ("jobs show --j", "--json"),
        ("health --j", "--json"),
    ],
)
def test_options_are_completed(bash_script: Path, typed: str, option: str) -> None:
    assert completed(bash_script, f"manage.py {typed}") == [option]


def test_choices_are_completed(bash_script: Path) -> None:
    assert completed(bash_script, "manage.py follow --view l") == ["linear"]


def test_files_are_completed(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "rooms.jsonl").touch()
    assert completed(bash_script, f"manage.py import_events {tmp_path}/ro") == [f"{tmp_path}/rooms.jsonl"]


def test_what_starts_nothing_like_a_command_is_left_alone(bash_script: Path) -> None:
    assert completed(bash_script, "manage.py nosuch") == []


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_zsh_reads_its_script(tmp_path: Path) -> None:
    script = written("zsh", tmp_path)
    done = subprocess.run(["zsh", "-n", script], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_script_for_zsh_knows_every_command(tmp_path: Path) -> None:
    text = written("zsh", tmp_path).read_text()
    assert text.startswith("#compdef manage.py")
    assert [name for name in own_commands() if f'"{name}:' not in text and f"{name})" not in text] == []


def test_djangos_own_options_are_left_out() -> None:
    assert "--pythonpath" not in whole_parser().format_help()
