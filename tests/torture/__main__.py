"""``python -m tests.torture [--seed N] [--seconds S | --facts N]``: a run by hand.

Prints the seed first, progress on stderr, the report at the end. Exit status 0 when all logs equal the table, else 1; then
the folder with all logs is kept.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.torture.orchestrator import PLANTED, Options, Torture
from tests.torture.site import site_in


def main() -> int:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the schedule (a random one)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long chaos lasts (60)")
    parser.add_argument(
        "--facts", type=int, default=0, help="last until so many facts are committed, instead of a time"
    )
    parser.add_argument("--pause", type=float, default=None, help="average seconds between transactions of a thread")
    parser.add_argument("--plant", choices=PLANTED, default="", help="plant a fault, which must be noticed")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="replsite-torture-"))
    folder.chmod(0o755)
    _say(f"seed {given.seed}, folder {folder}")
    pause = given.pause if given.pause is not None else (0.0 if given.facts else 0.05)
    options = Options(
        seed=given.seed, seconds=given.seconds, facts=given.facts, pause_seconds=pause, plant=given.plant,
        rest_seconds=90.0 + given.facts / 5_000, shows_progress=True,
    )  # fmt: skip
    with site_in(folder) as site:
        report = Torture(site, options, folder / "logs").run()
    _say(str(report))
    if not report.violations:
        shutil.rmtree(folder)
    return 1 if report.violations else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
