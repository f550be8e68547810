"""What the pages about production tell: their commands are ours, their files and units are there, their settings are taken."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from django.core.management import get_commands, load_command_class

from tests.deployment.places import FILES, postgres_program
from tests.deployment.units import FOLDER
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS

PAGES = {
    name: (PROJECT / "docs/how-to" / f"{name}.md").read_text()
    for name in ("run-in-production", "upgrade", "back-up-and-restore")
}
each_page = pytest.mark.parametrize("page", PAGES)


def lines(page: str) -> list[str]:
    return [line for block in re.findall(r"```sh\n(.*?)```", PAGES[page], re.S) for line in block.splitlines()]


def ours(page: str) -> list[list[str]]:
    """The words of every command of ours, in blocks and in the text."""
    spans = re.findall(r"`((?:replsite|manage\.py) [a-z][^`]*)`", PAGES[page])
    typed = [line for line in lines(page) if line.startswith(("replsite ", "manage.py "))]
    return [shlex.split(text)[1:] for text in (*spans, *typed)]


@each_page
def test_each_command_is_one_of_manage_py(page):
    found = ours(page)
    assert found
    for name, *arguments in found:
        if name.isupper():  # COMMAND
            continue
        command = load_command_class(get_commands()[name], name)
        command.create_parser("manage.py", name).parse_args(
            [word.replace("STREAM=TOKEN@EPOCH", "caches=1") for word in arguments]
        )


@each_page
def test_each_file_is_there(page):
    named = re.findall(r"docs/deployment/[\w./-]*\w", "\n".join(lines(page)))
    assert [name for name in named if not (PROJECT / name).exists()] == []


@each_page
def test_each_unit_is_there(page):
    """Also those that are named in tables."""
    named = set(re.findall(r"\breplsite-[a-z]+@?|\breplsite\.target", PAGES[page]))
    there = {re.sub(r"\.(service|timer)$", "", path.name) for path in FOLDER.iterdir()}
    assert {name for name in named if name not in there and name.rstrip("@") not in there} == set()


def test_postgresql_takes_the_settings(tmp_path):
    """Every name is known and every value can be read; what it says of one is what the file says."""
    text = (FILES / "postgresql" / "90-replsite.conf").read_text()
    file = tmp_path / "90-replsite.conf"
    file.write_text(text.replace("wal_compression = lz4", "wal_compression = on"))  # the wheel was built without lz4
    given = dict(re.findall(r"^(\w+) = '?([^'#\s]+)", text, re.M))
    assert len(given) > 10
    for name, value in (("shared_buffers", "524288"), ("max_connections", given["max_connections"])):
        more = (f"config_file={file}", f"data_directory={tmp_path}", "hba_file=/dev/null", "ident_file=/dev/null")
        command = [postgres_program("postgres"), "-C", name, *(part for option in more for part in ("-c", option))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        assert done.stdout.strip() == value, done.stderr


def test_the_settings_are_those_that_the_page_explains():
    given = set(re.findall(r"^(\w+) = ", (FILES / "postgresql/90-replsite.conf").read_text(), re.M))
    told = set(re.findall(r"`(\w+)`", PAGES["run-in-production"].partition("| setting | for 16 GB")[2]))
    assert told <= given and {"max_connections", "shared_buffers", "max_wal_size"} <= told


def test_figures_of_events_are_those_of_the_page_that_measured_them():
    scale = (PROJECT / "docs/explanation/scale.md").read_text()
    table, index = (
        int(re.search(rf"\| {of} \| ([\d,]+) bytes", scale)[1].replace(",", "")) for of in ("all tables", "all indexes")
    )
    wal = int(re.search(r"\| WAL \| ([\d,]+) bytes", scale)[1].replace(",", ""))
    shuffled = float(re.search(r"shuffle of the current .* ([\d.]+) kB for each event", scale)[1])
    sizing = PAGES["run-in-production"].partition("## Sizing")[2]
    assert f"| {round((table + index) / 1000, 1)} kB |" in sizing
    assert f"| {round(wal / 1000, 1)} kB |" in sizing
    assert f"| {shuffled} GB |" in sizing


def test_figures_name_benchmarks_that_exist():
    named = set(re.findall(r"script/bench (\w+)", PAGES["run-in-production"])) - {"NAME"}
    there = {path.stem for path in (PROJECT / "script/benchmarks").glob("*.py")}
    assert named <= there


def test_nginx_needs_nothing_of_the_folders_that_hold_secrets_and_rooms():
    """Its account reads what everybody may read: settings have passwords in them, and archives are rooms."""
    assert not re.search(r"^usermod|^(adduser|gpasswd) .*www-data", "\n".join(lines("run-in-production")), re.M)
    settings = dict(re.findall(r"^(\w+)=(.*)$", (FILES / "replsite.env").read_text(), re.M))
    static, data = settings["REPLSITE_STATIC_ROOT"], settings["REPLSITE_DATA_DIR"]
    assert not static.startswith(f"{data}/")
    assert f"alias {static}/;" in (FILES / "nginx/replsite.conf").read_text()
    assert f"install -d -m 0755 -o replsite -g replsite {static}" in lines("run-in-production")
