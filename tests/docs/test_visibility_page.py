"""The page of who sees an event, and why, lists exactly the words of the code, in their order."""

import inspect
import re
from pathlib import Path

import pytest

from events.models import EventVisibility
from events.visibility import access
from events.visibility.access import Reach
from events.visibility.rule import Answer, Rule, RuleInput, for_client, for_server

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "visibility.md").read_text()


def section(title):
    """The rows of the table under a heading: their cells."""
    text = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| `.*$", text, re.MULTILINE)
    ]


@pytest.mark.parametrize(
    "title, words",
    [
        ("What decides", list(Rule)),
        ("How a user can read an event", list(Reach)),
        ("Kinds of ranges", EventVisibility.Kind.values),
    ],
)
def test_tables_list_the_words_of_the_code(title, words):
    assert [row[0].strip("`") for row in section(title)] == [str(word) for word in words]


SIGHTS = {
    Rule.SOFT_FAILED: RuleInput(soft_failed=True, sender_ignored=True),
    Rule.TYPE: RuleInput(event_type="m.room.aliases", always_included=True),
    Rule.IGNORED_SENDER: RuleInput(sender_ignored=True, expired=True, membership="join"),
    Rule.RETENTION: RuleInput(expired=True, membership="join", always_included=True),
    Rule.ALWAYS_INCLUDED: RuleInput(always_included=True, outlier=True),
    Rule.OWN_MEMBERSHIP: RuleInput(outlier=True, own_membership=True),
    Rule.OUTLIER: RuleInput(outlier=True, visibility="world_readable"),
    Rule.OWN_LEAVE: RuleInput(
        own_membership=True, membership_before="join", membership="leave", visibility="world_readable"
    ),
    Rule.JOINED: RuleInput(membership="join", visibility="world_readable"),
    Rule.WORLD_READABLE: RuleInput(visibility="world_readable", peeking=True),
    Rule.SHARED: RuleInput(),
    Rule.INVITED: RuleInput(visibility="invited", membership="invite"),
    Rule.NOT_VISIBLE: RuleInput(visibility="joined", membership="invite"),
}


@pytest.mark.parametrize("rule", SIGHTS)
def test_rule_decides_as_the_page_says(rule):
    """Also before those below it, and with an erased sender."""
    answers = {row[0].strip("`"): row[2] for row in section("What decides")}
    verdict = for_client(SIGHTS[rule])
    assert verdict.rule is rule
    assert (verdict.answer is Answer.HIDDEN) is answers[rule].startswith("hidden")
    erased = for_client(RuleInput(**{**_fields(SIGHTS[rule]), "sender_erased": True}))
    assert (erased.answer is Answer.REDACTED) is ("pruned" in answers[rule])


def _fields(sight):
    return {name: getattr(sight, name) for name in sight.__slots__}


def test_other_servers_get_the_pruned_form_as_the_page_says():
    assert for_server("shared", ["join"], sender_erased=True).rule is Rule.ERASED_SENDER
    assert for_server("shared", [], sender_erased=False, state_known=False).rule is Rule.STATE_UNKNOWN
    assert {for_server(s, [], sender_erased=False).answer for s in ("joined", "invited")} == {Answer.REDACTED}


def test_functions_on_the_page_are_there():
    for call in (row[0].strip("`") for row in section("What users decide")):
        name, arguments = call.rstrip(")").split("(")
        assert list(inspect.signature(getattr(access, name)).parameters)[: arguments.count(",") + 1] == arguments.split(
            ", "
        )
