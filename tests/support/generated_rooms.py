"""Rooms made at random, with everything that decides who sees what: forks, settings, memberships, backfill, verdicts."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom

SETTINGS = ["world_readable", "shared", "invited", "joined", "nonsense"]
USERS = (ALICE, BOB, EVE)
_MEMBER = st.tuples(
    st.just("member"),
    st.sampled_from([BOB, EVE]),
    st.sampled_from(["join", "leave", "invite", "ban", "knock", "join", "leave"]),
    st.sampled_from([None, ALICE]),
)
_SETTING = st.tuples(st.just("setting"), st.sampled_from(SETTINGS))
_MESSAGE = st.just(("message",))
ACTS = st.one_of(
    _MESSAGE,
    _MEMBER,
    _SETTING,
    _MEMBER,
    _MESSAGE,
    st.just(("call",)),
    st.just(("redaction",)),
    st.tuples(st.just("rule"), st.sampled_from(["public", "invite"])),
)


@st.composite
def forked_rooms(draw, most_events=25, verdicts=True, backfill=True):
    """Each event stands on one or two of the last events; some are soft-failed or rejected, some came by backfill.

    ``verdicts`` false: none is told. Backfilled events are those of a stretch of the graph, as servers ask for them; they are
    first in the order of stream orderings.
    """
    made = MadeRoom(ruled=not verdicts)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}, "users_default": 50})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": draw(st.sampled_from(SETTINGS[::-1]))})
    made.member(BOB, "join")
    step = st.tuples(ACTS, st.sets(st.integers(1, 4), min_size=1, max_size=2), st.integers(0, 9))
    acts = draw(st.lists(step, min_size=most_events // 3, max_size=most_events))
    old = draw(st.sampled_from([0, 0, len(acts) // 3, len(acts)])) if backfill else 0
    for number, (act, back, flag) in enumerate(acts):
        prev = [made.events[-min(n, len(made.events) - 1)] for n in back]
        flags = {"soft_failed": True} if flag == 0 else {"rejected_reason": "x"} if flag == 1 else {}
        flags = flags if verdicts else {}
        if number < old:
            flags["stream_ordering"] = -1
        _act(made, act, prev, flags)
    if draw(st.booleans()):  # readable by strangers at last, some of whom were members once
        made.state("m.room.history_visibility", "", {"history_visibility": "world_readable"})
        made.member(BOB, draw(st.sampled_from(["ban", "leave"])), sender=ALICE)
    before = [event for event in made.events if event.backfilled]
    made.events = [*before, *(event for event in made.events if not event.backfilled)]
    return made


def _act(made, act, prev, flags):
    match act:
        case ("message",):
            made.message(prev, **flags)
        case ("call",):
            made.send({"type": "m.call.invite"}, prev, **flags)
        case ("redaction",):
            made.redaction(prev[0], sender=EVE, prev=prev, **flags)
        case ("setting", value):
            made.state("m.room.history_visibility", "", {"history_visibility": value}, prev, **flags)
        case ("rule", value):
            made.state("m.room.join_rules", "", {"join_rule": value}, prev, **flags)
        case ("member", user, membership, sender):
            made.member(user, membership, prev, sender=sender, **flags)
