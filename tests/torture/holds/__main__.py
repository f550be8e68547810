"""``python -m tests.torture.holds [--seed N] [--seconds S] [--crashes S] [--plant FAULT | --plants]``: a run by hand.

Exit status 0 when all readers have all facts, or when each planted fault was noticed; else 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.torture.holds.run import Options, run, set_up, with_plant
from tests.torture.holds.tables import PLANTS
from tests.torture.own_postgres import OwnPostgres


def main() -> int:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.holds", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of what clients do (a random one)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long clients append (60)")
    parser.add_argument(
        "--crashes", type=float, default=10.0, help="mean seconds between crashes of the server (10; 0: none)"
    )
    parser.add_argument("--asynchronous", action="store_true", help="clients commit without a flush")
    parser.add_argument("--plant", choices=sorted(PLANTS), default="", help="plant a fault, which must be noticed")
    parser.add_argument("--plants", action="store_true", help="plant each fault, one after another")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replsite-holds-") as folder:
        Path(folder).chmod(0o755)
        with closing(OwnPostgres(Path(folder))) as server:
            set_up(server)
            if not given.plants and not given.plant:
                report = run(
                    server, Options(given.seed, given.seconds, crash_seconds=given.crashes, asynchronous=given.asynchronous)
                )  # fmt: skip
                _say(f"seed {given.seed}: {report}")
                return 1 if report.violations else 0
            missed = 0
            for plant in PLANTS if given.plants else [given.plant]:
                report = run(server, with_plant(plant, given.seed, given.seconds))
                _say(f"{plant}: {report}\n  check: {report.weaknesses or 'finds nothing'}")
                missed += not report.violations
            return 1 if missed else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
