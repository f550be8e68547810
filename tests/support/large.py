"""Loads that are too heavy for the suite, which has a small version of each: ``python -m tests.support.large hour|viewers``.

``hour``: 3,600 steps of the live page, in the browser and in the server. ``viewers``: 1,000 viewers and 1,000 replication
connections on one server. ``--ticks``, ``--number`` and ``--seconds`` change the sizes.
"""

from __future__ import annotations

import argparse
import os
import sys

import pytest

LOADS = {
    "hour": ["tests/integration/replsite/test_answers_for_an_hour.py", "tests/acceptance/test_an_hour.py"],
    "viewers": ["tests/acceptance/test_many_viewers.py"],
}


def main() -> int:
    """Run one of them; the figures are printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.large", description=__doc__)
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--ticks", type=int, default=3_600)
    parser.add_argument("--number", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    os.environ |= {
        "REPLSITE_TEST_TICKS": str(given.ticks),
        "REPLSITE_TEST_VIEWERS": str(given.number),
        "REPLSITE_TEST_SECONDS": str(given.seconds),
    }
    return int(pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-m", "", "-o", "timeout=7200", *LOADS[given.load]]))


if __name__ == "__main__":
    sys.exit(main())
