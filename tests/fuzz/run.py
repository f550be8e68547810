"""The run: inputs of all kinds by number, so that each can be made again; the first that breaks a rule is shrunk and told."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from tests.fuzz import inputs
from tests.fuzz.conversation import check, check_round_trip
from tests.fuzz.following import check_history, check_lies, check_linear_view

__all__ = ["KINDS", "fuzz", "one", "shrunk"]


def _conversation(rng: random.Random) -> None:
    check(inputs.data(rng), rng)


def _command(rng: random.Random) -> None:
    check_round_trip(inputs.command(rng))


#: Kind -> how many of a hundred inputs. Histories and lies take a hundred times as long as a conversation.
KINDS: dict[str, tuple[Callable[[random.Random], None], int]] = {
    "conversation": (_conversation, 70),
    "command": (_command, 26),
    "linear view": (check_linear_view, 2),
    "history": (check_history, 1),
    "lies": (check_lies, 1),
}


def one(seed: int, number: int) -> str:
    """The input of that number; returns its kind, raises what it found."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choices(list(KINDS), [share for _, share in KINDS.values()])[0]
    KINDS[kind][0](rng)
    return kind


def fuzz(seed: int, count: int, *, seconds: float = float("inf"), shows_progress: bool = False) -> Counter[str]:
    """So many inputs, or as many as the time allows; how many of each kind. Raises at the first that breaks a rule."""
    done: Counter[str] = Counter()
    begun = told = time.monotonic()
    for number in range(count):
        now = time.monotonic()
        if now > begun + seconds:
            break
        if shows_progress and now > told + 1:
            told = now
            rate = number / (now - begun)
            sys.stderr.write(f"{number:>9,} inputs  {rate:,.0f}/s  left {(count - number) / rate:,.0f} s\n")
        try:
            done[one(seed, number)] += 1
        except Exception as error:
            raise AssertionError(f"input {number} of seed {seed}: {type(error).__name__}: {error}") from error
    return done


def shrunk(data: bytes) -> bytes:
    """A shorter input that still breaks a rule, for the corpus."""
    size = len(data) // 2
    while size:
        for start in range(0, len(data), size):
            shorter = data[:start] + data[start + size :]
            if _breaks(shorter):
                data = shorter
                break
        else:
            size //= 2
    return data


def _breaks(data: bytes) -> bool:
    try:
        check(data, random.Random(0))
    except Exception:  # noqa: BLE001 - whatever it found
        return True
    return False
