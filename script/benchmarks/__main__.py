"""Runs benchmarks by name, each in a process and on a database of its own that is gone afterwards."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module

from script.benchmarks import figures

NAMES = (
    "appends",
    "holds",
    "outbox",
    "handled",
    "by_key",
    "broadcast",
    "idle",
    "thin",
    "starts",
    "snapshot",
    "latency",
    "browsers",
    "catchup",
    "state",
    "persist",
    "forks",
    "joins",
    "hot",
    "sync",
    "page",
    "visibility",
    "live",
    "mirror",
    "doctor",
    "purge",
    "archive",
    "compress",
    "growth",
    "resync",
    "lists",
    "import_",
    "load",
    "scale",
    "large_room",
)


def main() -> int:
    """Runs those that were named, or all."""
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of: {', '.join(NAMES)} (all)")
    parser.add_argument("--facts", type=int, help="facts that followers of 'catchup' are behind (200000)")
    parser.add_argument("--sizes", help="numbers of rows for 'growth' and 'scale', such as 100000,300000")
    parser.add_argument("--jobs", help="only those jobs of 'growth' that have this in their name")
    parser.add_argument(
        "--page", action="store_true", help="only write the page of figures, from build/bench and docs/figures"
    )
    given = parser.parse_args()
    if given.page:
        taken = figures.keep_newer()
        figures.write(NAMES)
        print(f"{figures.PAGE.relative_to(figures.PROJECT)} is written; new results: {', '.join(taken) or 'none'}")
        return 0
    names = given.names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if len(names) > 1:  # two of them may store the same room
        told = {"--facts": given.facts, "--sizes": given.sizes, "--jobs": given.jobs}
        options = [part for name, value in told.items() if value for part in (name, str(value))]
        run = [sys.executable, "-m", "script.benchmarks"]
        return max(subprocess.run([*run, name, *options], check=False).returncode for name in names)
    folder = tempfile.mkdtemp(prefix="replsite-bench-")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    os.environ["REPLSITE_DATA_DIR"] = folder
    os.environ["REPLSITE_LOG_LEVEL"] = "ERROR"
    if given.facts:
        os.environ["REPLSITE_BENCH_FACTS"] = str(given.facts)
    if given.sizes:
        os.environ["REPLSITE_BENCH_SIZES"] = given.sizes
    if given.jobs:
        os.environ["REPLSITE_BENCH_JOBS"] = given.jobs
    try:
        import django  # noqa: PLC0415 - after the environment is set
        from django.core.management import call_command  # noqa: PLC0415

        django.setup()
        call_command("migrate", verbosity=0)
        import_module(f"script.benchmarks.{names[0]}").main()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
