"""The folder that one test session lives in: its embedded server, its temporary files, and what is left of them.

Without ``DATABASE_URL`` each process of the session has a PostgreSQL of its own, started when its first test asks for a database:
roles, settings, checkpoints, tablespaces and locks belong to the whole server, so tests beside one another must not share one.
Workers of pytest-xdist share the folder of their controller, which removes it at the end. Folders of sessions that were
killed are removed by the next one.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.waiting import DEADLINE_SECONDS

PROJECT = Path(__file__).resolve().parents[2]
FOLDER_VARIABLE = "REPLSITE_TEST_SESSION"
_NAME = "replsite-tests-{pid}-"
_WORKERS = PROJECT / "pipeline" / "spark" / "workers"
_SPARK_PATH = PROJECT / "tests" / "spark_path"
_CLASSES = PROJECT / ".venv" / "spark.jsa"


def enter() -> Path:
    """Make the folder and point the environment at it; must come before Django's settings are loaded."""
    # Compiling our modules anew would take a third of the CPU of each of the hundreds of processes that tests start.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Set on many machines with containers. Commands that write each line at once would hide what those of an operator do.
    os.environ.pop("PYTHONUNBUFFERED", None)
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = Path(os.environ[FOLDER_VARIABLE])
    else:
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=_NAME.format(pid=os.getpid())))
        folder.chmod(0o755)
    process = os.environ.get("PYTEST_XDIST_WORKER", "main")
    temporary = folder / f"tmp-{process}"
    temporary.mkdir(exist_ok=True)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest's tmp_path outlives the session
    os.environ.update(
        {
            FOLDER_VARIABLE: str(folder),
            "TMPDIR": str(temporary),
            "REPLSITE_DATA_DIR": str(folder / f"data-{process}"),
            "REPLSITE_POSTGRES_FSYNC": "off",
            "REPLSITE_LOG_LEVEL": os.environ.get("REPLSITE_LOG_LEVEL", "WARNING"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "spark"),
            **_quick_spark(folder / "spark.conf"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
    )
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None and (PROJECT / ".java" / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(PROJECT / ".java")
    tempfile.tempdir = None  # read TMPDIR anew
    return folder


def _quick_spark(defaults: Path) -> dict[str, str]:
    """What makes every JVM that a test starts begin quickly, as variables; what runs for seconds need not be compiled well.

    Classes come out of the archive that ``script/_environment`` made, where it is and fits this Java: half of a start's CPU. The
    JVM takes it for one class path only, so our defaults must not lie in a folder of configuration, which would be part of that.
    """
    compiling = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    lines = [f"spark.{whose}.defaultJavaOptions {compiling}\n" for whose in ("driver", "executor")]
    defaults.write_text("".join([*lines, "spark.python.daemon.module warm_spark_daemon\n"]))
    os.environ.pop("SPARK_CONF_DIR", None)
    places = dict.fromkeys(
        [str(_WORKERS), str(_SPARK_PATH), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    )
    return {
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {defaults} pyspark-shell",
        "PYTHONPATH": os.pathsep.join(places),
        "SPARK_SUBMIT_OPTS": class_archive_options(),
    }


def python_path(*folders: Path) -> str:
    """``PYTHONPATH`` of a process with folders of its own, before what all processes of the tests have (``tests/spark_path``)."""
    return os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def class_archive_options() -> str:
    """For a JVM of Spark: its loaded classes, if there is an archive of them; it says nothing where that does not fit."""
    return f"-Xlog:disable -XX:SharedArchiveFile={_CLASSES}" if _CLASSES.exists() else "-Xlog:disable"


def leave(folder: Path) -> None:
    """Stop the servers, and remove the folder. The controller's last act."""
    from replsite.postgres.server import EmbeddedServer

    for data in folder.glob("data-*"):
        EmbeddedServer(data).stop_for_good()
    shutil.rmtree(folder, ignore_errors=True)


def left_behind(seconds: float = DEADLINE_SECONDS) -> tuple[list[str], list[str]]:
    """Living children and files, once there are none or the time is up.

    A process that was told to end may need a moment. One whose parent has ended is nobody's child any more, and may still
    hold a file for that moment.
    """
    deadline = time.monotonic() + seconds
    while any(found := (left_processes(), left_files())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def left_processes() -> list[str]:
    """Living children of this process, but for Python's own helper of multiprocessing, and servers that its tests started."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            words = child.cmdline()
            if child.status() != psutil.STATUS_ZOMBIE and not any("resource_tracker" in word for word in words):
                found.append(f"{child.pid}: {' '.join(words)[:200]}")
        except psutil.NoSuchProcess:
            continue
    own = os.environ["REPLSITE_DATA_DIR"]
    found += [
        f"{server.pid}: {' '.join(server.cmdline())[:200]}"
        for server in _servers(lambda environment: environment.get("TMPDIR") == os.environ["TMPDIR"])
        if not any(word.startswith(own) for word in server.cmdline())
    ]
    return found


def left_files() -> list[str]:
    """What is left in this process's temporary folder."""
    return sorted(entry.name for entry in Path(os.environ["TMPDIR"]).iterdir())


def _sweep() -> None:
    """Remove the folders of sessions whose process is gone."""
    for entry in Path(tempfile.gettempdir()).glob(_NAME.format(pid="*") + "*"):
        found = re.match(_NAME.format(pid=r"(\d+)"), entry.name)
        if found and not psutil.pid_exists(int(found.group(1))):
            for server in _servers(lambda environment, folder=entry: environment.get(FOLDER_VARIABLE) == str(folder)):
                server.kill()
            shutil.rmtree(entry, ignore_errors=True)


def _servers(is_ours: Callable[[dict[str, str]], bool]) -> list[psutil.Process]:
    """First processes of embedded servers, by the environment of the process that started them."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        with suppress(psutil.Error):
            if (
                process.info["name"] == "postgres"
                and "-D" in (process.info["cmdline"] or ())
                and is_ours(process.environ())
            ):
                found.append(process)
    return found
