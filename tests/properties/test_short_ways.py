"""Short ways through parsing, ordering and judging, against the long ones that they spare."""

from dataclasses import dataclass
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from events.errors import EventRefused
from events.format import parsing
from events.room import event_auth, graph, state_assignment
from events.room.graph import causal_order
from state.rules.auth_rules import AuthRules
from tests.support.effort import examples
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.room_results import room_history

VERSIONS = [str(number) for number in range(1, 13)]

# --- parsing ----------------------------------------------------------------------------------------------------------

FIELDS = [
    "type",
    "sender",
    "depth",
    "content",
    "state_key",
    "room_id",
    "auth_events",
    "origin_server_ts",
    "redacts",
    "x",
]
VALUES = [
    *("1.0", "1e5", "-0", "01", "NaN", "1E400", "9007199254740991", "9007199254740992", "1" + "0" * 30, "null", "true"),
    *('""', '"\\ud800"', '"\\u0041"', '"\\/"', '"\\u0000"', '"😀"', '"' + "é" * 128 + '"', '"' + "y" * 66_000 + '"'),
    *("{}", "[]", '{"a":1,"a":2}', '["$a","$a"]', '[["$a:h",{}]]', "[1]", "[" * 251 + "]" * 251, "[" * 950 + "]" * 950),
]


def outcome(line, versions):
    try:
        return parsing.parse_line(line, versions)
    except EventRefused as refused:
        return refused.reason, refused.detail


@settings(deadline=None, max_examples=examples(80))
@given(
    st.sampled_from(VERSIONS),
    st.lists(st.tuples(st.sampled_from(FIELDS), st.sampled_from(VALUES)), max_size=2),
    st.booleans(),
)
@example("10", [("depth", "1")], False)
def test_plain_text_is_parsed_as_all_text_is(version, wrong, wrapped):
    """Also with a key twice: what is changed stands behind what was there, or alone."""
    fields = {
        "type": '"m.room.message"',
        "sender": '"@a:b"',
        "depth": "3",
        "content": '{"body":"x"}',
        "room_id": '"!r:b"',
    }
    fields |= {"event_id": '"$e:b"', "prev_events": "[]", "auth_events": "[]", "origin_server_ts": "5"}
    fields |= dict(wrong[:1])
    pairs = [*fields.items(), *wrong[1:]]
    text = ("{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}").encode()
    line = b'{"room_version":"%s","json":%s}' % (version.encode(), text) if wrapped else text
    short = outcome(line, {"!r:b": version})
    with patch.object(parsing, "decode_plain", lambda _text: None):
        assert outcome(line, {"!r:b": version}) == short


# --- order ------------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    event_id: str
    prev_event_ids: tuple[str, ...]
    auth_event_ids: tuple[str, ...]
    outlier: bool = False


@st.composite
def histories(draw):
    """Mostly in order; (nodes, what else comes first)."""
    count = draw(st.integers(2, 7))
    highest = [draw(st.sampled_from([number - 1, number - 1, number, count - 1])) for number in range(count)]
    below = [st.lists(st.integers(-1, top).map("e{}".format), max_size=3) for top in highest]
    nodes = [
        Node(f"e{number}", tuple(draw(below[number])), tuple(draw(below[number])), draw(st.booleans()))
        for number in range(count)
    ]
    return nodes, {f"e{number}": draw(below[number]) for number in range(0, count, 3)}


@settings(deadline=None)
@given(histories(), st.booleans(), st.booleans())
def test_order_of_a_history_in_order_is_that_of_any(history, auth, more):
    nodes, also = history
    told = also if more else None
    with patch.object(graph, "_in_causal_order", lambda *_: False):
        long = causal_order(nodes, auth=auth, also=told)
    assert causal_order(nodes, auth=auth, also=told) == long


# --- judging ----------------------------------------------------------------------------------------------------------


class ForgetfulRules(AuthRules):
    """Rules that look at power levels each time."""

    def levels(self, state, create):
        self._last_levels = None
        return super().levels(state, create)


class ForgetfulJudge(event_auth.EventAuthorizer):
    """A judge that asks about every event."""

    def rejection(self, event, before):
        self._cached.clear()
        return super().rejection(event, before)


TYPES = ["m.room.message", "m.room.power_levels", "m.room.member", "m.room.aliases", "m.room.third_party_invite"]
LEVELS = st.fixed_dictionaries(
    {"users": st.dictionaries(st.sampled_from([BOB, EVE]), st.sampled_from([0, 50, 100, "50"]))},
    optional={name: st.sampled_from([0, 50, 100]) for name in ("events_default", "state_default", "invite", "redact")},
)
ACTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([ALICE, BOB, EVE]), st.sampled_from(TYPES), LEVELS, st.integers(1, 3)),
    max_size=15,
)


def acted(version, acts):
    made = MadeRoom(version, ruled=True)
    made.state("m.room.power_levels", "", {"users": {} if version == "12" else {ALICE: 100}, "invite": 50})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    for user in (BOB, EVE):
        made.member(user, "join")
    for kind, sender, event_type, content, back in acts:
        prev = [made.events[-back]]
        if kind == 0:
            made.send({"type": "m.room.power_levels", "state_key": "", "sender": sender, "content": content}, prev)
        elif kind == 1:
            made.redaction(made.events[back + 1], sender=sender)
        else:
            made.send({"type": event_type, "sender": sender, "content": content}, prev)
    return made.events


@settings(deadline=None, max_examples=examples(60))
@given(st.sampled_from(VERSIONS), ACTS)
def test_what_was_asked_before_is_what_is_asked_anew(version, acts):
    events = acted(version, acts)
    short = room_history(events)
    with (
        patch.object(state_assignment, "AuthRules", ForgetfulRules),
        patch.object(state_assignment, "EventAuthorizer", ForgetfulJudge),
    ):
        assert room_history(events) == short
