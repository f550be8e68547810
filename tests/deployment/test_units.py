"""The systemd units: systemd takes them, their commands are ours, and what they promise to systemd happens."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from streams import registry
from tests.deployment.places import FILES, program
from tests.deployment.units import CODE, FOLDER, START, Unit, read, services
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import ready_ports

ANALYZE = program("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here: Debian's package systemd")
VALUES = {
    "FOLLOW": "redis://127.0.0.1:6379?channel=example.org",
    "DATABASE": "postgresql://reader@db.example.org/synapse",
    "SERVER": "redis://127.0.0.1:6379?channel=example.org",
    "KEEP": "30d",
}
INSTANCES = {
    "replsite-serve@": "1",
    "replsite-handlers@": "billing",
    "replsite-jobs@": "1",
    "replsite-record@": "main",
    "replsite-mirror@": "main",
    "replsite-trim@": "caches",
    "replsite-migrate@": "0.1.0",
}
each_service = pytest.mark.parametrize("unit", services(), ids=lambda unit: unit.name)


def instance_of(unit: Unit) -> str:
    stem = unit.path.stem
    return INSTANCES[stem] if stem.endswith("@") else ""


# --- systemd's own opinion ----------------------------------------------------------------------------------------


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units beside programs that are really there, as systemd looks for them."""
    folder = shutil.copytree(FOLDER, tmp_path / "system")
    for path in (*folder.glob("*.service"), *folder.glob("*/*.conf")):
        path.write_text(path.read_text().replace(CODE, str(PROJECT)))
    return folder


def verify(folder: Path) -> subprocess.CompletedProcess[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    command = [ANALYZE, "verify", "--man=no", *(f"./{name}" for name in names)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)


@needs_systemd
def test_systemd_takes_every_unit(units):
    done = verify(units)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("RestrictRealtime=yes", "RestrictRealTime=yes"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@no-such-group"),
        ("OnCalendar=hourly", "OnCalendar=hourlyish"),
        ("/usr/bin/env", "/nowhere/env"),
    ],
)
def test_what_is_wrong_in_a_unit_or_in_the_common_part_is_noticed(units, right, wrong):
    for path in (*units.iterdir(), *units.glob("*/*.conf")):
        if path.is_file():
            path.write_text(path.read_text().replace(right, wrong))
    assert verify(units).stderr != ""


@needs_systemd
def test_processes_may_do_little(units):
    """Systemd's own measure: 10 is everything, below 2 is its best word."""
    command = [ANALYZE, "security", "--offline=true", "--no-pager", "--threshold=20"]
    for path in sorted(units.glob("*.service")):
        done = subprocess.run(
            [*command, f"./{path.name}"],
            cwd=units,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (path.name, done.stdout[-2000:])


# --- the commands -------------------------------------------------------------------------------------------------


@each_service
def test_each_command_line_is_one_that_manage_py_takes(unit):
    for name, *arguments in unit.commands(instance_of(unit), VALUES):
        command = load_command_class(get_commands()[name], name)
        assert not [word for word in arguments if "$" in word or "%" in word], arguments
        command.create_parser("manage.py", name).parse_args(arguments)


def test_the_stream_of_the_example_can_be_trimmed():
    """Tables of some streams are the data itself."""
    (command,) = read(FOLDER / "replsite-trim@.service").commands(INSTANCES["replsite-trim@"], VALUES)
    assert registry.get(command[2]).declaration.trimmable


@each_service
def test_each_setting_of_a_unit_is_a_documented_one(unit):
    page = (PROJECT / "docs/reference/settings.md").read_text()
    assert [name for name in unit.environment("x") if f"`{name}`" not in page and name not in VALUES] == []


@each_service
def test_each_file_of_settings_has_its_example(unit):
    files = [Path(name.lstrip("-")).name for name in unit.keys["EnvironmentFile"]]
    assert "replsite.env" in files
    told = unit.path.read_text()
    there = {path.name for path in FILES.glob("*.env")} | set(re.findall(r"[a-z-]+\.env", told.partition("[Unit]")[0]))
    assert {name.replace("%i", instance_of(unit)) for name in files} <= there


def test_units_that_wait_for_readiness_are_those_that_tell_it():
    """``Type=notify`` without a word would be killed after its time; a word without ``Type=notify`` is not waited for."""
    telling = {"serve", "runhandlers", "pipeline", "mirror"}
    for unit in services():
        ((name, *_), *more) = unit.commands(instance_of(unit), VALUES)
        assert (unit.keys["Type"] == ["notify"]) == (name in telling and not more), unit.name


def test_java_may_compile_and_nothing_else_may():
    """Which commands may start Spark: those of the pipeline's room."""
    for unit in services():
        may = "MemoryDenyWriteExecute" not in unit.keys
        rooms = {get_commands()[words[0]] for words in unit.commands(instance_of(unit), VALUES)}
        starts_spark = "pipeline" in rooms or unit.name == "replsite-daily.service"  # purge --archive
        assert may == starts_spark, unit.name


def test_a_process_keeps_to_its_version_when_the_link_is_led_elsewhere(tmp_path):
    """Its own modules and those of its packages are looked for in the version's folder, not through the link."""
    (tmp_path / "current").symlink_to(PROJECT)
    where = "import os, sys; print(os.getcwd(), sys.prefix, *(path for path in sys.path if 'current' in path))"
    done = subprocess.run(
        [*START[:2], "-c", where],
        cwd=tmp_path / "current",
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.stdout.split() == [str(PROJECT), str(PROJECT / ".venv")]
    for unit in services():
        assert unit.keys["WorkingDirectory"] in (["/opt/replsite/current"], ["/opt/replsite/%i"]), unit.name


def test_the_target_starts_everything_that_lasts():
    for path in FOLDER.glob("*.timer"):
        assert read(path).keys["WantedBy"] == ["replsite.target"]
        assert (FOLDER / f"{path.stem}.service").exists()
    for unit in services():
        if unit.keys["Type"] != ["oneshot"]:
            assert unit.keys["WantedBy"] == unit.keys["PartOf"] == ["replsite.target"], unit.name
            assert unit.keys["Restart"] == ["always"], unit.name


# --- the environment ----------------------------------------------------------------------------------------------


def settings_of(name: str) -> dict[str, str]:
    lines = (FILES / name).read_text().splitlines()
    return dict(line.removeprefix("#").split("=", 1) for line in lines if re.match(r"#?[A-Z_]+=", line))


@pytest.mark.parametrize("name", ["replsite.env", "owner.env"])
def test_every_variable_is_a_documented_one(name):
    page = (PROJECT / "docs/reference/settings.md").read_text()
    assert [name for name in settings_of(name) if f"`{name}`" not in page and name != "PGOPTIONS"] == []


def test_manage_py_by_hand_has_the_settings_of_the_services_and_django_has_nothing_to_say_about_them(tmp_path):
    """As an ordinary user; root becomes the account of the services first."""
    changed = {"REPLSITE_DATA_DIR": str(tmp_path), "REPLSITE_SECRET_KEY": "0aB-9xYz" * 10}
    given = {name: value for name, value in settings_of("replsite.env").items() if "TLS" not in name} | changed
    env = tmp_path / "replsite.env"
    env.write_text("".join(f"{name}='{value}'\n" for name, value in given.items()))
    script = (FILES / "replsite").read_text().replace('"$(id -u)" = 0', "x = y")
    done = subprocess.run(
        ["sh", "-c", script, "replsite", "check", "--deploy", "--fail-level", "INFO"], capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "REPLSITE_ENVIRONMENT": str(env), "REPLSITE_CODE": str(PROJECT)}, check=False,
        timeout=2 * DEADLINE_SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "System check identified no issues (2 silenced).\n"), done.stderr


# --- what systemd is told -----------------------------------------------------------------------------------------


def test_the_server_tells_when_it_is_ready_that_it_lives_and_that_it_ends(site, tmp_path):
    unit = read(FOLDER / "replsite-serve@.service")
    (words,) = unit.commands("1", {})
    words = [re.sub(r":\d+$", ":0", word) for word in words]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(DEADLINE_SECONDS)
        told: list[bytes] = []
        more = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        process = site.start(*words, **unit.environment("1"), **more)

        def hears(word: bytes) -> bool:
            told.extend(manager.recv(1000).split(b"\n"))
            return word in told

        wait_until(lambda: hears(b"READY=1"))
        assert ready_ports(process).keys() == {"http", "replication"}
        told.clear()
        wait_until(lambda: hears(b"WATCHDOG=1"))
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: hears(b"STOPPING=1"))
        assert process.wait(DEADLINE_SECONDS) == 0


def test_the_pipeline_tells_that_it_is_ready(tmp_path, settings):
    """Its own start takes a Spark session; that its line comes is tested with the pipeline."""
    from pipeline.management.commands.pipeline import Command

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        settings.REPLSITE_NOTIFY_SOCKET = str(tmp_path / "notify")
        Command().announce_ready("ready pipeline")
        assert manager.recv(100).startswith(b"READY=1\n")
