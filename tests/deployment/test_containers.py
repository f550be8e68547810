"""The container files: hadolint takes the Containerfile, and each command of it and of the compose file does its work here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.conftest import end_processes
from tests.deployment.places import FILES
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import ready_ports

FOLDER = FILES / "container"
FILE = FOLDER / "Containerfile"
PAGE = PROJECT / "docs/how-to/run-in-containers.md"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "replsite"}
HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each instruction; lines that go on are joined."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.M))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line]


def words(word: str) -> list[Any]:
    """The JSON forms of an instruction."""
    return [yaml.safe_load(rest[rest.index("[") :]) for name, rest in instructions() if name == word and "[" in rest]


# --- the image ----------------------------------------------------------------------------------------------------


def lint(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HADOLINT, "--no-color", file], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


def test_hadolint_finds_nothing():
    done = lint(FILE)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        ("python:3.12-slim-bookworm", "python", "DL3006"),
        ("WORKDIR /opt/replsite\nENV", "WORKDIR opt\nENV", "DL3000"),
        ('ENTRYPOINT ["python", "manage.py"]', "ENTRYPOINT python manage.py", "DL3025"),
        ("USER 10001", "USER root", "DL3002"),
    ],
)
def test_hadolint_notices_what_is_wrong(tmp_path, right, wrong, rule):
    assert right in FILE.read_text()
    file = tmp_path / "Containerfile"
    file.write_text(FILE.read_text().replace(right, wrong))
    assert rule in lint(file).stdout


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """What the image gets of the checkout: the files that git has and the ignore file lets in."""
    lines = (FOLDER / "containerignore").read_text().split()
    let_in = [line.removeprefix("!") for line in lines if line.startswith("!")]
    files = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for name in files.splitlines():
        if name.split("/")[0] in let_in and not any(fnmatch(name, line) for line in lines if line.startswith("**")):
            target = tmp_path / "context" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, target, follow_symlinks=False)
    return tmp_path / "context"


@pytest.mark.slow
@pytest.mark.scenario
def test_the_image_has_what_its_commands_need(context):
    """The commands of the build, on the files of the context; packages of others come from this environment."""
    extras = next(rest for word, rest in instructions() if word == "ARG").partition("=")[2]
    known = set(re.findall(r"^([a-z-]+) = \[", (PROJECT / "pyproject.toml").read_text(), re.M))
    assert set(extras.split(",")) <= known
    (build, _) = [rest for word, rest in instructions() if word == "RUN"]
    site = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {
        **os.environ, "EXTRAS": extras, "PYTHONPATH": site, "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip
    environment.pop("VIRTUAL_ENV", None)
    subprocess.run(["/bin/sh", "-euc", build], cwd=context, env=environment, check=True, timeout=4 * DEADLINE_SECONDS)
    (entry,) = words("ENTRYPOINT")
    environment["PATH"] = f"{context}/.venv/bin:{os.environ['PATH']}"
    done = subprocess.run(
        [*entry, "serve", "--help"], cwd=context, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--replication" in done.stdout


# --- the compose file ---------------------------------------------------------------------------------------------


def test_services_wait_for_what_is_there_and_use_what_is_declared():
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        named = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert named <= set(COMPOSE["volumes"])
    for service in OURS.values():
        assert set(service["depends_on"]) & {"migrate", "postgres"}


def test_settings_are_ours_and_the_writers_have_names_of_their_own():
    known = (PROJECT / "docs/reference/settings.md").read_text()
    for service in OURS.values():
        assert [name for name in service["environment"] if f"`{name}`" not in known] == []
    assert SERVICES["writer"]["command"][-2:] == ["--instance", "writer-1"]
    writers = [service["environment"] for name, service in OURS.items() if name not in ("migrate", "writer")]
    names = [*(environment.get("REPLSITE_WRITER") for environment in writers), "writer-1"]
    assert None not in names and len(set(names)) == len(names)


def test_the_network_is_the_one_that_may_speak_plain_text():
    (config,) = COMPOSE["networks"]["inside"]["ipam"]["config"]
    assert all(service["environment"]["REPLSITE_PLAIN_NETWORKS"] == config["subnet"] for service in OURS.values())


def test_the_image_serves_as_the_compose_file_does():
    (cmd,) = words("CMD")[-1:]
    assert SERVICES["serve-1"]["command"][: len(cmd)] == cmd == SERVICES["serve-2"]["command"][: len(cmd)]


def test_a_process_without_a_handler_ends_at_the_signal():
    """PID 1 gets no signal that it does not handle, and would be killed after 10 s."""
    assert all(service["init"] is True for service in OURS.values())


def test_files_that_the_page_names_are_there():
    for name in re.findall(r"docs/deployment/container/\w+", PAGE.read_text()):
        assert (PROJECT / name).exists(), name
    for line in re.findall(r"exec (\S+) python manage.py (\w+)", PAGE.read_text()):
        assert line[0] in OURS


# --- the commands, on a real PostgreSQL -----------------------------------------------------------------------------


@pytest.mark.slow
def test_every_service_does_its_work(production, tmp_path):
    """Each with its own command and settings; only addresses, the database and the folder are those of this machine."""

    def start(name: str):
        service = OURS[name]
        command = [
            word.replace("0.0.0.0:8000", "127.0.0.1:0").replace("0.0.0.0:9092", "127.0.0.1:0")
            for word in service["command"]
        ]
        own = {
            key: value
            for key, value in service["environment"].items()
            if key not in ("DATABASE_URL", "REPLSITE_SECRET_KEY")
        }
        own["REPLSITE_SERVER_NAME"] = "localhost"
        assert "$" not in "".join(own.values())
        return production.start(*command, **own, REPLSITE_SECRET_KEY="x" * 50, REPLSITE_DATA_DIR=str(tmp_path))

    migrate = production.manage(*OURS["migrate"]["command"], role="replsite_owner")
    assert "No migrations to apply" in migrate.stdout
    servers = {name: start(name) for name in ("serve-1", "serve-2")}
    ports = {name: ready_ports(process)["http"] for name, process in servers.items()}
    start("jobs")
    start("writer")

    def ready(port: int) -> bool:
        with urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=DEADLINE_SECONDS) as answer:
            return answer.status == 200

    assert all(wait_until(lambda port=port: ready(port)) for port in ports.values())
    (check,) = words("HEALTHCHECK")
    program = check[2].replace(":8000/", f":{ports['serve-1']}/")
    assert subprocess.run([sys.executable, "-c", program], timeout=DEADLINE_SECONDS, check=False).returncode == 0
    with urlopen(Request(f"http://127.0.0.1:{ports['serve-2']}/health/live", headers={"Host": "serve-2"})) as answer:
        assert answer.status == 200

    def written() -> bool:
        with production.session() as cursor:
            cursor.execute(
                "SELECT position FROM streams_streamposition WHERE instance_name = 'writer-1' AND stream = 'caches'"
            )
            row = cursor.fetchone()
        return row is not None and row[0] > 3

    wait_until(written)
    end_processes(servers.values())
    failing = subprocess.run(
        [sys.executable, "-c", program], timeout=DEADLINE_SECONDS, check=False, stderr=subprocess.DEVNULL
    )
    assert failing.returncode != 0
