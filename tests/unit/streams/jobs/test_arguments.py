"""An argument is declared once: options of the command, the check of a job and the form are made of it, alike for every kind."""

from __future__ import annotations

import argparse

import pytest

from streams.jobs.arguments import DRY_RUN, JSON, Argument, OneOf, Type, add_options, dry_run
from streams.jobs.command import JobLine, command_lines
from streams.jobs.errors import UnusableArguments
from streams.jobs.forms import job_form
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, Words, operations, register

_PLACE = OneOf(required=True)


class Dig(Operation):
    """Takes one of everything."""

    name, help = "dig", "Dig."
    arguments = (
        Argument("where", Type.TEXT, "the place", typed="WHERE", required=True),
        Argument("before", Type.TEXT, "before it", one_of=_PLACE, omitted=True),
        Argument("after", Type.TEXT, "after it", one_of=_PLACE, omitted=True),
        Argument("names", Type.LINES, "a name", typed="--name NAME"),
        Argument("depth", Type.NUMBER, "metres", typed="--depth M", bounds=(0, 1_000), default=2.5),
        Argument("holes", Type.WHOLE, "how many", bounds=(1, 9)),
        Argument("deep", Type.WHETHER, "deep or not"),
        Argument("tool", Type.CHOICE, "with what", typed=None, choices=("spade", "hand"), default="spade"),
        Argument("resume", Type.FLAG, "go on", stored=False),
        dry_run("only say"),
        JSON,
    )


def typed(*words: str) -> dict:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, Dig.arguments)
    return vars(parser.parse_args(words))


#: What is typed for it.
DIG = JobLine(Dig(), Words("dig", "Dig.", "dig here"))


def line_of(name: str) -> JobLine:
    """What runs the job from the command line."""
    found = [one for one in command_lines().values() if isinstance(one, JobLine)]
    return next(one for one in found if one.operation.name == name)


def test_what_is_typed_is_what_the_job_gets():
    options = typed("here", "--before", "x", "--name", "a", "--name", "b", "--holes", "3", "--no-deep", "--dry-run")
    assert DIG.given(options) == {
        "where": "here", "before": "x", "after": None, "names": ["a", "b"], "depth": 2.5, "holes": 3, "deep": False,
        "dry_run": True,
    }  # fmt: skip
    assert Dig().check(DIG.given(options)) == {
        "where": "here", "before": "x", "names": ["a", "b"], "depth": 2.5, "holes": 3, "deep": False, "tool": "spade",
        "dry_run": True,
    }  # fmt: skip


@pytest.mark.parametrize("words", [[], ["here"], ["here", "--before", "a", "--after", "b"], ["here", "--tool", "hand"]])
def test_what_excludes_each_other_or_is_needed_is_told_by_the_parser(words):
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        typed(*words)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"where": ""}, "where must be text, not ''."),
        ({}, "where must be text, not None."),
        ({"names": ["a", 1]}, "names must be a list of texts, not ['a', 1]."),
        ({"depth": 1_001}, "depth must be a number from 0 to 1,000, not 1001."),
        ({"holes": 1.5}, "holes must be a number from 1 to 9, not 1.5."),
        ({"holes": True}, "holes must be a number from 1 to 9, not True."),
        ({"deep": 0}, "deep must be true or false, not 0."),
        ({"tool": "axe"}, "tool must be one of spade, hand, not 'axe'."),
        ({"dry_run": "no"}, "dry_run must be true or false, not 'no'."),
        ({"resume": True}, "Unknown arguments: resume. There are: where, before, after, names, depth, holes, deep, tool, "
                           "dry_run."),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_with_its_name(given, said):
    with pytest.raises(UnusableArguments) as refused:
        Dig().check({"where": "here", **given} if given else {})
    assert str(refused.value) == said


def test_checked_arguments_are_checked_to_the_same_again():
    checked = Dig().check({"where": "here", "after": "x", "depth": 0})
    assert Dig().check(checked) == checked and checked["depth"] == 0


def test_the_form_has_what_the_job_stores_but_the_dry_run(monkeypatch):
    monkeypatch.setattr("streams.jobs.operation._operations", {})
    register(Dig())
    form = job_form("dig")({"where": "here", "names": "a\nb", "depth": "0", "deep": "false", "tool": "hand"})
    assert list(form.fields) == ["where", "before", "after", "names", "depth", "holes", "deep", "tool"]
    assert form.is_valid() and form.job_arguments() == {
        "where": "here", "names": ["a", "b"], "depth": 0, "deep": False, "tool": "hand",
    }  # fmt: skip


@pytest.mark.parametrize("kind", sorted({*operations()} - {"censor", "check streams", "import_events"}))
def test_every_job_is_run_by_a_command_whose_options_are_its_arguments(kind):
    parser = argparse.ArgumentParser()
    line_of(kind).add_arguments(parser)
    stored = {one.name for one in operations()[kind].arguments if one.stored and one.typed is not None}
    assert stored - {action.dest for action in parser._actions} <= {"rooms", "master"}  # `resync` of some subjects


@pytest.mark.parametrize("kind", sorted(operations()))
def test_a_job_that_takes_a_dry_run_plans_it(kind):
    found = operations()[kind]
    can_be_run_dry = any(one.name == DRY_RUN for one in found.arguments)
    assert can_be_run_dry is (type(found).plan is not Operation.plan)


def test_a_dry_run_of_a_job_that_has_none_does_nothing():
    with pytest.raises(NotImplementedError, match="dig takes no dry_run"):
        Dig().plan(JobRun.__new__(JobRun))
