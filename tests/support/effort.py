"""How many examples Hypothesis tries: few in the suite, many on request.

    script/test tests/properties tests/unit --hypothesis-profile long

A test that wants more or fewer than others says ``settings(max_examples=examples(300))``, so that the profile counts there, too.
Times are no subject of these tests: a busy machine breaks none.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

__all__ = ["examples"]

_SUITE, _LONG = 50, 2_000


def load_profiles() -> None:
    """Before any test is imported."""
    for name, count in (("suite", _SUITE), ("long", _LONG)):
        settings.register_profile(name, max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("suite")


def examples(count: int) -> int:
    """So many in the suite, more in proportion to the profile."""
    return max(count * settings.default.max_examples // _SUITE, 1)
