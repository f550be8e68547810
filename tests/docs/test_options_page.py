"""The page of options is what the parsers say, and every command of ours is on it."""

from __future__ import annotations

import pytest

from tests.support.scripts import load_script

script = load_script("options_page")
TEXT = script.PAGE.read_text()


def section(name: str) -> str:
    return TEXT.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


COMMANDS = script.own_commands()


@pytest.mark.parametrize("name", [name for name, found in COMMANDS.items() if not hasattr(found, "former")])
def test_every_option_of_a_command_is_in_its_section(name: str) -> None:
    pending, seen = [script.own_parser(COMMANDS[name])], []
    while pending:
        each = pending.pop()
        pending += script._subparsers(each).values()
        seen += [option for action in script._own_actions(each) for option in action.option_strings]
    assert [option for option in seen if option not in section(name)] == []


def test_djangos_own_options_are_left_out() -> None:
    assert "--pythonpath" not in TEXT


def test_markup_in_words_is_shown_as_it_is() -> None:
    assert script._plain("local[4] | <b> *\n") == r"local\[4\] \| \<b\> \*"
