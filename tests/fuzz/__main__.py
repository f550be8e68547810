"""``python -m tests.fuzz [--inputs N] [--seed S]``: a long run by hand.

Prints the seed first, progress on stderr, the counts at the end. Exit status 1 at the first input that breaks a rule, with
its number and, for a conversation, the shortest form that was found.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

import django


def main() -> int:
    """Parse, run, tell."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    os.environ.setdefault("REPLSITE_SECRET_KEY", "nothing is kept")
    django.setup()
    from tests.fuzz.run import fuzz, one

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="how many (100000)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="makes a run again (a random one)")
    parser.add_argument("--only", type=int, help="only the input of this number")
    given = parser.parse_args()
    sys.stdout.write(f"seed {given.seed}\n")
    sys.stdout.flush()
    if given.only is not None:
        one(given.seed, given.only)
        return 0
    begun = time.monotonic()
    try:
        done = fuzz(given.seed, given.inputs, shows_progress=True)
    except AssertionError as error:
        sys.stdout.write(f"{error}\n{_shortest(error)}")
        return 1
    told = ", ".join(f"{count:,} of kind {kind}" for kind, count in done.most_common())
    sys.stdout.write(f"{sum(done.values()):,} inputs in {time.monotonic() - begun:.0f} s, no rule broken: {told}\n")
    return 0


def _shortest(error: AssertionError) -> str:
    """The corpus line of a conversation that broke a rule."""
    from tests.fuzz import inputs
    from tests.fuzz.run import KINDS, shrunk

    words = str(error).split()
    rng = random.Random(f"{words[4].rstrip(':')} {words[1]}")
    if rng.choices(list(KINDS), [share for _, share in KINDS.values()])[0] != "conversation":
        return ""
    return f"for corpus.txt: {shrunk(inputs.data(rng))!r}\n"


if __name__ == "__main__":
    sys.exit(main())
