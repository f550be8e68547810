"""A filter of state is a union of exact keys, whole types, and all types but some."""

import pytest

from state.groups.filters import EVERYTHING, MEMBER, StateFilter

STATE = {
    ("m.room.create", ""): "$create",
    ("m.room.name", ""): "$name",
    (MEMBER, "@a:x"): "$a",
    (MEMBER, "@b:x"): "$b",
    ("m.space.child", "!r"): "$child",
}


def passed(only):
    return set(only.apply(STATE).values())


@pytest.mark.parametrize(
    "only, wanted",
    [
        (EVERYTHING, set(STATE.values())),
        (StateFilter(), set()),
        (StateFilter.at([("m.room.name", ""), (MEMBER, "@b:x"), ("m.room.topic", "")]), {"$name", "$b"}),
        (StateFilter.of_types(["m.space.child", "m.room.create"]), {"$child", "$create"}),
        (StateFilter.members(), {"$a", "$b"}),
        (StateFilter.without_members(), {"$create", "$name", "$child"}),
        (StateFilter.lazy(["@a:x", "@nobody:x"]), {"$create", "$name", "$child", "$a"}),
    ],
    ids=["everything", "nothing", "keys", "types", "members", "without members", "lazy"],
)
def test_filter_lets_pass_what_it_names(only, wanted):
    assert passed(only) == wanted
    assert {key for key in STATE if only.passes(key)} == {key for key, event in STATE.items() if event in wanted}


def test_filter_knows_when_it_lets_everything_pass():
    assert EVERYTHING.is_everything and not StateFilter.without_members().is_everything
    assert (StateFilter.without_members() | StateFilter.members()).is_everything


def test_filter_of_keys_only_names_all_that_may_pass():
    assert StateFilter.at([("m.room.name", "")]).is_keys_only and StateFilter().is_keys_only
    assert not any(only.is_keys_only for only in (EVERYTHING, StateFilter.members(), StateFilter.lazy(["@a:x"])))


@pytest.mark.parametrize("one", [EVERYTHING, StateFilter.members(), StateFilter.lazy(["@a:x"]), StateFilter()])
@pytest.mark.parametrize(
    "other", [StateFilter.of_types(["m.room.name"]), StateFilter(all_but=frozenset({"m.room.name"}))]
)
def test_either_of_two_filters(one, other):
    assert passed(one | other) == passed(other | one) == passed(one) | passed(other)


@pytest.mark.parametrize("make", [StateFilter.of_types, StateFilter.lazy])
def test_one_string_is_no_collection_of_strings(make):
    with pytest.raises(TypeError, match="collection"):
        make("m.room.name")
