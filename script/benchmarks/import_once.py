"""One import in a process of its own, and what each of its stages takes: one line of JSON (see ``import_``).

CPU is that of this process, of the JVM, of the Python workers below it, and of all processes of the database server, children
that have ended included. Memory is sampled; that of the workers is the sum of what each has for itself (USS).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from django.db import connection

from script.benchmarks.sampling import Sampling

SAMPLE_SECONDS = 1.0
WHO = ("driver", "jvm", "workers", "postgres")
_TICKS = os.sysconf("SC_CLK_TCK")


def _seconds(process: psutil.Process, *, children: bool) -> float:
    """CPU seconds of a process, and where wanted of its children that have ended."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11 : 15 if children else 13]) / _TICKS


class Meter(Sampling):
    """Reads the CPU seconds of everybody who works for an import, and samples their memory."""

    def __init__(self) -> None:
        super().__init__(SAMPLE_SECONDS)
        self._own = psutil.Process()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            self._postmaster = psutil.Process(psutil.Process(cursor.fetchone()[0]).ppid())
        self._most = dict.fromkeys(WHO, 0)
        self._last = dict.fromkeys(WHO, 0.0)
        self.steps: dict[str, dict[str, float]] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Keep the seconds of a block under that name: its wall, and the CPU of each."""
        begun, before = time.monotonic(), self.cpu()
        yield
        spent = {who: seconds - before[who] for who, seconds in self.cpu().items()}
        self.steps[name] = {"wall": time.monotonic() - begun, **spent}

    @property
    def most_mb(self) -> dict[str, float]:
        """The highest samples of memory."""
        return {who: most / 1024 / 1024 for who, most in self._most.items()}

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Who is who."""
        below = self._own.children(recursive=True)
        jvm = [process for process in below if _is_java(process)]
        workers = [process for process in below if process not in jvm]
        postgres = [self._postmaster, *self._postmaster.children()]
        return {"driver": [self._own], "jvm": jvm, "workers": workers, "postgres": postgres}

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far; what has ended with its parent keeps its last figure."""
        for who, processes in self.processes().items():
            total = 0.0
            for process in processes:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    total += _seconds(process, children=who in ("workers", "postgres"))
            self._last[who] = max(self._last[who], total)
        return dict(self._last)

    def sample(self) -> None:
        """Keep the last figures of CPU and the highest of memory."""
        self.cpu()
        for who, processes in self.processes().items():
            if who != "postgres":
                self._most[who] = max(self._most[who], sum(_memory(process, who) for process in processes))


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("java")
    except psutil.Error:
        return False


def _memory(process: psutil.Process, who: str) -> int:
    try:
        return int(process.memory_full_info().uss if who == "workers" else process.memory_info().rss)
    except psutil.Error:
        return 0


def bind_to_one_core(meter: Meter) -> None:
    """This process, all that it will start, and the database server."""
    os.sched_setaffinity(0, {0})
    for process in meter.processes()["postgres"]:
        with contextlib.suppress(psutil.Error):
            process.cpu_affinity([0])


def release_cores(meter: Meter) -> None:
    """The database server gets all cores back."""
    for process in meter.processes()["postgres"]:
        with contextlib.suppress(psutil.Error):
            process.cpu_affinity([])


def run(paths: list[Path], cores: int) -> dict[str, Any]:
    """Import into the database as it is."""
    from pipeline.importing import job  # noqa: PLC0415 - after Django is set up
    from pipeline.importing.job import ImportOptions, import_history  # noqa: PLC0415
    from streams.jobs import job_run  # noqa: PLC0415
    from streams.jobs.progress import Progress  # noqa: PLC0415

    meter = Meter()

    class Measured(Progress):
        """Takes the figures around every stage."""

        @contextmanager
        def stage(self, name: str, *rest: Any) -> Iterator[None]:
            with meter.step(name), super().stage(name, *rest):
                yield

    if cores == 1:
        bind_to_one_core(meter)
    try:
        with meter:
            job_run.Progress = Measured  # type: ignore[misc]
            job.BYTES_IN_PROCESS = 2**40
            with meter.step("all"):
                outcome = import_history(ImportOptions(paths, master=f"local[{cores}]"), io.StringIO())
            meter.steps["all"]["wall"] -= outcome.spark_seconds
    finally:
        release_cores(meter)
    return {
        "stages": meter.steps,
        "memory": meter.most_mb,
        "spark_seconds": outcome.spark_seconds,
        "unresolved": outcome.unresolved,
        **outcome.summary(),
    }


if __name__ == "__main__":
    import django

    django.setup()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(run(given.paths, given.cores)) + "\n")
