"""What the start of every command leaves alone: libraries that only some of them need, and that take long to import."""

from __future__ import annotations

import subprocess
import sys

from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS

#: Each takes from 0.2 s to 2 s.
SLOW = (
    "pandas", "numpy", "pyarrow", "pyspark", "adbc_driver_manager", "daphne", "twisted.internet.reactor",
    # Ours: all kinds of job, what appends and maintenance import.
    "pipeline.maintenance.registration", "streams.maintenance.trim_command", "events.persist.batch",
)  # fmt: skip


def test_commands_start_without_what_is_slow_to_import():
    code = f"import sys, django; django.setup(); print(*(name for name in {SLOW!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_SECONDS,
        check=False,
    )
    assert (done.stdout.split(), done.returncode) == ([], 0), done.stderr
