"""Who may change which power levels."""

import pytest

from state.rules.power_level_changes import level_change_refusal
from state.rules.power_levels import PowerLevels
from state.rules.room_versions import room_version

ME, LESS, SAME = "@me:a.test", "@less:a.test", "@same:a.test"
OLD = {"users": {ME: 50, LESS: 40, SAME: 50}, "ban": 50, "kick": 30, "events": {"x": 50}, "notifications": {"room": 50}}


def refusal(new, old=OLD, version="10", creators=()):
    return level_change_refusal(ME, new, PowerLevels(room_version(version), old, creators))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"ban": 0},
        {"kick": 50},
        {"redact": 50},
        {"events": {"x": 0, "y": 50}},
        {"events": {}},
        {"users": {**OLD["users"], LESS: 50}},
        {"users": {ME: 50, SAME: 50}},
        {"users": {**OLD["users"], ME: 0}},
        {"users": {LESS: 40, SAME: 50}},
        {"users": {**OLD["users"], "@new:a.test": 50}},
    ],
)
def test_allowed_up_to_the_own_level(change):
    assert refusal({**OLD, **change}) is None


@pytest.mark.parametrize(
    "change, named",
    [
        ({"ban": 51}, "ban"),
        ({"users_default": 51}, "users_default"),
        ({"invite": 51}, "invite"),
        ({"events": {"x": 51}}, "events x"),
        ({"events": {"y": 51}}, "events y"),
        ({"notifications": {"room": 51}}, "notifications room"),
        ({"users": {**OLD["users"], LESS: 51}}, LESS),
        ({"users": {**OLD["users"], "@new:a.test": 51}}, "@new"),
        ({"users": {**OLD["users"], SAME: 10}}, SAME),
        ({"users": {ME: 50, LESS: 40}}, SAME),
        ({"users": {**OLD["users"], ME: 60}}, ME),
    ],
)
def test_refused_above_the_own_level_or_about_equals(change, named):
    assert named in refusal({**OLD, **change})


def test_what_is_above_the_own_level_can_not_be_taken_away():
    old = {**OLD, "ban": 60, "events": {"x": 60}}
    assert "ban" in refusal({key: value for key, value in old.items() if key != "ban"}, old)
    assert "events x" in refusal({**old, "events": {}}, old)
    assert refusal(old, old) is None


def test_notifications_are_checked_from_version_6_on():
    new = {**OLD, "notifications": {"room": 90}}
    assert refusal(new, version="5") is None and "notifications" in refusal(new, version="6")


def test_the_first_levels_are_free_but_must_be_readable():
    assert refusal({"users": {ME: 1000}, "ban": 5000}, old=None) is None
    assert "no integer" in refusal({"users": {ME: "x"}}, old=None)


@pytest.mark.parametrize("new", [{"users": {ME: "50"}}, {"users": {ME: True}}, {"ban": "50"}, {"events": {"x": "1"}}])
def test_levels_are_integers_from_version_10_on(new):
    assert "no integer" in refusal(new, old=None)


def test_text_of_digits_is_a_level_before_version_10():
    assert refusal({**OLD, "users": {**OLD["users"], LESS: "40"}, "ban": "50"}, version="9") is None
    assert "ban" in refusal({**OLD, "ban": "51"}, version="9")


@pytest.mark.parametrize(
    "new", [{"users": []}, {"users": {"me": 1}}, {"users": {"@me": 1}}, {"events": []}, {"notifications": 5}]
)
def test_wrong_shapes_are_refused(new):
    assert refusal(new, old=None)


def test_creators_of_version_12_are_not_named():
    assert "creator" in refusal({"users": {ME: 100}}, old=None, version="12", creators=[ME])
    assert refusal({"users": {LESS: 2**53 - 1}}, old={"users": {}}, version="12", creators=[ME]) is None
