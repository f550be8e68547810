"""Power levels as the rules read them."""

import math

import pytest

from state.rules.power_levels import PowerLevels
from state.rules.room_versions import room_version


def levels(content, version="10", creators=("@c:a",)):
    return PowerLevels(room_version(version), content, creators)


def test_without_an_event_the_creator_has_100_and_others_0():
    assert [levels(None).of_user(user) for user in ("@c:a", "@x:a")] == [100, 0]
    assert levels(None).to_redact() == 50


def test_event_decides_for_the_creator_too():
    found = levels({"users": {"@x:a": 70}, "users_default": 5, "redact": 60})
    assert [found.of_user("@x:a"), found.of_user("@c:a"), found.to_redact()] == [70, 5, 60]


def test_creators_of_version_12_are_above_every_number():
    assert levels({"users": {}}, "12").of_user("@c:a") == math.inf


@pytest.mark.parametrize("version, level", [("9", 75), ("10", 5)])
def test_strings_of_digits_count_before_version_10(version, level):
    assert levels({"users": {"@x:a": "75"}, "users_default": 5}, version).of_user("@x:a") == level


@pytest.mark.parametrize("nonsense", ["", "x", "1" * 500, None, [], {}, True])
def test_nonsense_is_no_level(nonsense):
    assert levels({"users": {"@x:a": nonsense}, "redact": nonsense}, "9").of_user("@x:a") == 0
    assert levels({"users": nonsense, "redact": nonsense}, "9").to_redact() == 50
