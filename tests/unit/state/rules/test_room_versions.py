"""The table of room versions."""

import pytest

from state.errors import UnknownRoomVersion
from state.rules.room_versions import ROOM_VERSIONS, EventIdForm, Resolution, room_version


def having(feature):
    return [name for name, version in ROOM_VERSIONS.items() if getattr(version, feature)]


@pytest.mark.parametrize(
    "feature, first",
    [
        ("ids_are_hashes", 3),
        ("enforces_key_validity", 5),
        ("strict_json", 6),
        ("checks_notification_levels", 6),
        ("knocking", 7),
        ("restricted_joins", 8),
        ("redaction_keeps_authorising_user", 9),
        ("integer_power_levels", 10),
        ("knock_restricted_joins", 10),
        ("newer_redactions", 11),
        ("room_id_is_create_hash", 12),
    ],
)
def test_feature_stays_from_its_first_version_on(feature, first):
    assert having(feature) == [str(number) for number in range(first, 13)]


def test_aliases_lose_their_rules_with_version_6():
    assert having("aliases_are_special") == ["1", "2", "3", "4", "5"]


def test_resolution_changes_twice():
    found = [version.resolution for version in ROOM_VERSIONS.values()]
    assert found == [Resolution.V1] + [Resolution.V2] * 10 + [Resolution.V2_1]


def test_only_version_3_has_ids_in_standard_base64():
    assert [n for n, v in ROOM_VERSIONS.items() if v.event_id_form is EventIdForm.HASH] == ["3"]


@pytest.mark.parametrize("name", ["", "0", "13", "org.example.x", "10 "])
def test_unknown_version_names_the_known_ones(name):
    with pytest.raises(UnknownRoomVersion, match="Known versions: 1, 2, 3"):
        room_version(name)
