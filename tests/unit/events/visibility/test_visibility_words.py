"""Every rule of visibility has a sentence, and the answer says first what becomes of the event."""

from types import SimpleNamespace

import pytest

from events.visibility.access import Reach
from events.visibility.rule import Rule
from events.visibility.visibility_words import REACHES, RULES, answer_in_words, reasons_in_words


def explained(**about):
    values = {"allowed": True, "pruned": False, "reachable": True, "rule": "joined", "reach": Reach.MEMBER}
    more = {"membership": "join", "history_visibility": "shared", "redacted_by": None}
    return SimpleNamespace(**{**values, **more, **about})


def test_every_rule_has_a_sentence():
    only_of_servers = {Rule.ERASED_SENDER, Rule.STATE_UNKNOWN}
    assert set(RULES) == {str(rule) for rule in set(Rule) - only_of_servers}


def test_every_way_to_get_at_an_event_has_a_sentence():
    assert set(REACHES) == {str(reach) for reach in Reach}


@pytest.mark.parametrize(
    "about, begins",
    [
        ({}, "Shown."),
        ({"allowed": False}, "Hidden"),
        ({"reachable": False}, "Out of reach"),
        ({"pruned": True}, "Shown in pruned form: the sender"),
        ({"redacted_by": "$r"}, "Shown in pruned form: the event is redacted"),
        ({"allowed": False, "reachable": False, "redacted_by": "$r"}, "Hidden"),
    ],
)
def test_answer_says_what_becomes_of_the_event(about, begins):
    assert answer_in_words(explained(**about)).startswith(begins)


def test_reasons_name_the_rule_first_and_the_state_at_the_event():
    reasons = reasons_in_words(explained(rule="shared", membership=None))
    assert reasons[0] == RULES["shared"] and reasons[-1] == "At the event: membership none, history visibility shared."
    assert len(reasons_in_words(explained(history_visibility=None))) == 2
