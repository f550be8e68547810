"""The folder that one test session lives in: its embedded server, its temporary files, and what is left of them.

Without ``DATABASE_URL`` the session has a PostgreSQL of its own, started when the first test asks for a database.
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
from pathlib import Path

import psutil

PROJECT = Path(__file__).resolve().parent.parent
FOLDER_VARIABLE = "REPLSITE_TEST_SESSION"
_NAME = "replsite-tests-{pid}-"


def enter() -> Path:
    """Make the folder and point the environment at it; must come before Django's settings are loaded."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = Path(os.environ[FOLDER_VARIABLE])
    else:
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=_NAME.format(pid=os.getpid())))
        folder.chmod(0o755)
    temporary = folder / f"tmp-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    temporary.mkdir(exist_ok=True)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest's tmp_path outlives the session
    os.environ.update(
        {
            FOLDER_VARIABLE: str(folder),
            "TMPDIR": str(temporary),
            "REPLSITE_DATA_DIR": str(folder / "data"),
            "REPLSITE_POSTGRES_FSYNC": "off",
            "REPLSITE_LOG_LEVEL": os.environ.get("REPLSITE_LOG_LEVEL", "WARNING"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "spark"),
            "SPARK_CONF_DIR": str(_quick_spark(folder / "spark-conf")),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
    )
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None and (PROJECT / ".java" / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(PROJECT / ".java")
    tempfile.tempdir = None  # read TMPDIR anew
    return folder


def _quick_spark(folder: Path) -> Path:
    """Spark's defaults for every JVM that a test starts: what runs for seconds is not worth being compiled well."""
    folder.mkdir(exist_ok=True)
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    lines = [f"spark.{whose}.defaultJavaOptions {options}\n" for whose in ("driver", "executor")]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return folder


def leave(folder: Path) -> None:
    """Let go of the server, wait until its keeper has stopped it, and remove the folder. The controller's last act."""
    from replsite.postgres.folder import Folder
    from replsite.postgres.launcher import release

    release(folder / "data")
    server = Folder(folder / "data" / "postgres")
    deadline = time.monotonic() + 30
    while server.path.exists() and server.has_keeper() and time.monotonic() < deadline:
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def left_processes() -> list[str]:
    """Living children of this process, but for Python's own helper of multiprocessing."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            words = child.cmdline()
            if child.status() != psutil.STATUS_ZOMBIE and not any("resource_tracker" in word for word in words):
                found.append(f"{child.pid}: {' '.join(words)[:200]}")
        except psutil.NoSuchProcess:
            continue
    return found


def left_files() -> list[str]:
    """What is left in this process's temporary folder."""
    return sorted(entry.name for entry in Path(os.environ["TMPDIR"]).iterdir())


def _sweep() -> None:
    """Remove the folders of sessions whose process is gone."""
    for entry in Path(tempfile.gettempdir()).glob(_NAME.format(pid="*") + "*"):
        found = re.match(_NAME.format(pid=r"(\d+)"), entry.name)
        if found and not psutil.pid_exists(int(found.group(1))):
            shutil.rmtree(entry, ignore_errors=True)
