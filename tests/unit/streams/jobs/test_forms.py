"""The forms of jobs: every argument of every kind can be entered, and becomes what the kind takes."""

from __future__ import annotations

import pytest

from streams.jobs import operation as declared
from streams.jobs.arguments import Argument, Type
from streams.jobs.errors import UnusableArguments
from streams.jobs.forms import job_form
from streams.jobs.operation import Operation, operations


def known(kind: str) -> set[str]:
    """The names that the kind says it knows."""
    with pytest.raises(UnusableArguments) as refused:
        operations()[kind].check({"no such argument": 1})
    names = str(refused.value).partition("There are: ")[2].rstrip(".")
    return set(names.split(", ")) - {"none"}


@pytest.mark.parametrize("kind", sorted(operations()))
def test_every_argument_of_a_kind_has_a_field_and_there_are_no_others(kind):
    fields = job_form(kind)().fields
    assert set(fields) == known(kind) - {"dry_run"}
    assert all(field.help_text for field in fields.values())


def entered(kind, **values):
    form = job_form(kind)(values)
    assert form.is_valid(), form.errors
    return form.job_arguments()


def test_what_is_empty_is_left_out():
    assert entered("purge history", room="!a:b", before="$e") == {"room": "!a:b", "before": "$e"}
    assert entered("resync", what="rooms", rooms="  \n") == {"what": "rooms"}
    assert entered("check streams") == {}


def test_nought_is_not_empty():
    days = entered("censor", days="0")["days"]
    assert (days, type(days)) == (0, int)


def test_lines_are_a_list():
    assert entered("resync", what="state", rooms="!a:b\r\n\n !c:d ")["rooms"] == ["!a:b", "!c:d"]


def test_a_moment_is_milliseconds_in_utc():
    assert entered("purge history", room="!a:b", before_time="2026-01-31T12:00:01")["before_time"] == 1_769_860_801_000


def test_flags_choices_and_days_become_what_they_say():
    got = entered("export", to="x", tables=["rooms"], since="2026-01-31", buckets="4", overwrite="on")
    assert got == {"to": "x", "tables": ["rooms"], "since": "2026-01-31", "buckets": 4, "overwrite": True}
    assert entered("archive", room="!a:b", folder="x", spark="false")["spark"] is False


def test_nothing_endless_is_taken():
    assert "room" in job_form("purge room")({"room": "x" * 1_001}).errors
    assert "rooms" in job_form("resync")({"what": "rooms", "rooms": "x" * 10_001}).errors


def test_a_reason_stands_beside_the_field_that_it_names():
    form = job_form("censor")({"days": "1"})
    form.is_valid()
    form.refuse("days must be fewer.")
    form.refuse("Give one of them.")
    assert form.errors["days"] == ["days must be fewer."]
    assert form.non_field_errors() == ["Give one of them."]


def test_an_operation_may_bring_fields_of_its_own(monkeypatch):
    class Own(Operation):
        name, help = "own", "Mine."
        arguments = (Argument("size", Type.NUMBER, "how large", bounds=(0, 9)),)

    monkeypatch.setitem(declared._operations, "own", Own())
    assert entered("own", size="1.5") == {"size": 1.5}
