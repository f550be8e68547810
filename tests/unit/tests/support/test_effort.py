"""Examples of Hypothesis by profile."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.support.effort import examples


@pytest.fixture(autouse=True)
def _profile_stays():
    before = settings.get_current_profile_name()
    yield
    settings.load_profile(before)


@pytest.fixture
def long_profile() -> None:
    settings.load_profile("long")


def test_in_the_second_tier_there_are_as_many_as_said():
    settings.load_profile("suite")
    assert (examples(300), examples(1), settings.default.max_examples) == (300, 1, 50)


def test_in_the_gate_there_are_fewer():
    settings.load_profile("gate")
    assert (examples(300), examples(1), settings.default.max_examples) == (180, 1, 30)


def test_on_request_there_are_more_in_proportion(long_profile):
    assert (examples(300), examples(1), settings.default.max_examples) == (12_000, 40, 2_000)


def test_no_time_breaks_a_property(long_profile):
    assert settings.default.deadline is None
