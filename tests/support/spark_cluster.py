"""A real standalone Spark cluster on loopback: a master and workers, each a JVM of its own with one core.

Its processes get an environment without ours and a folder of their own, so that nothing of the project can be imported there but
what a job ships.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from tests.support.session import class_archive_options
from tests.support.waiting import DEADLINE_SECONDS, wait_until

__all__ = ["Cluster", "spark_cluster"]

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 90.0
_DEPLOY = "org.apache.spark.deploy"
_EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Cluster:
    """Where it is, and its processes."""

    master: str
    folder: Path
    workers: Sequence[subprocess.Popen[bytes]]

    def executors(self, worker: int) -> list[int]:
        """Process IDs of a worker's executors."""
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.workers[worker].pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    found += [child.pid] if any(_EXECUTOR in word for word in child.cmdline()) else []
        return found

    def kill_executor(self, worker: int) -> bool:
        """``kill -9`` of a worker's executors; False when there was none."""
        pids = self.executors(worker)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster for the length of the block; returns when every worker has registered."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(folder, "master", "master.Master", "--port", "0"))
        port = _told(folder, "master", r"'sparkMaster' on port (\d+)")
        master = f"spark://127.0.0.1:{port}"
        for number in range(workers):
            name = f"worker{number}"
            sizes = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / name))
            started.append(_start(folder, name, "worker.Worker", *sizes, master))
        for number in range(workers):
            _told(folder, f"worker{number}", r"Successfully (registered) with master")
        yield Cluster(master, folder, started[1:])
    finally:
        for process in reversed(started):
            _end(process)


def _start(folder: Path, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
    own = folder / name
    own.mkdir(parents=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(own),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        # They live for a minute, executors included.
        "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {class_archive_options()}",
        "SPARK_LOCAL_DIRS": str(own / "scratch"),
        "TMPDIR": str(own),
    }
    if java := os.environ.get("JAVA_HOME"):
        environment["JAVA_HOME"] = java
    with (folder / f"{name}.log").open("wb") as log:
        command = [
            str(SPARK_HOME / "bin" / "spark-class"),
            f"{_DEPLOY}.{main}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
        ]
        return subprocess.Popen(
            [*command, *arguments],
            cwd=own,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _told(folder: Path, name: str, pattern: str) -> str:
    """What a process has written into its log."""
    log = folder / f"{name}.log"
    return wait_until(lambda: re.search(pattern, log.read_text(errors="replace")), START_SECONDS)[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    """A worker ends its executors when it is asked to; whatever is left of its group goes with it."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(DEADLINE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
