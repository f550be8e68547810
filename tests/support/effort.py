"""How many examples are tried, and with which seed: few and the same in the gate, more and others in the second tier.

    script/test tests/properties tests/unit --hypothesis-profile long

``REPLSITE_TEST_SEED`` is a number, for other examples, fuzzing and torture than the gate's; ``script/test --all`` chooses one and
says it. In the gate a find of chance would stop a change that has nothing to do with it.

A test that wants more or fewer than others says ``settings(max_examples=examples(300))``, so that the profile counts there, too,
as it does for tests that roll their own dice: ``range(examples(12))``.
Times are no subject of these tests: a busy machine breaks none.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

__all__ = ["SEED", "examples"]

#: The number to begin from; what fails says it.
SEED = int(os.environ.get("REPLSITE_TEST_SEED", "1"))

_GATE, _SUITE, _LONG = 30, 50, 2_000


def load_profiles() -> None:
    """Before any test is imported."""
    for name, count in (("gate", _GATE), ("suite", _SUITE), ("long", _LONG)):
        settings.register_profile(
            name,
            max_examples=count,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            derandomize="REPLSITE_TEST_SEED" not in os.environ,
        )
    settings.load_profile("suite" if "REPLSITE_TEST_SEED" in os.environ else "gate")


def examples(count: int) -> int:
    """So many in the second tier; fewer in the gate and more on request, in proportion."""
    return max(count * settings.default.max_examples // _SUITE, 1)
