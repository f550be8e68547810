"""Commands that the live page offers for copying: ``manage.py`` takes them as they are."""

from __future__ import annotations

import re
import shlex

import pytest
from django.core.management import get_commands, load_command_class

from tests.support.session import PROJECT

MENU = (PROJECT / "replsite/static/dashboard/live_menu.js").read_text()
STATUS = (PROJECT / "replsite/live_rows/verdicts.py").read_text()
IN_MENU = [re.sub(r"\$\{[^}]*\}", "7", text) for text in re.findall(r"copy\([`\"](.*?)[`\"]\)", MENU)]
IN_SENTENCES = [re.sub(r"\{[^}]*\}", "tcp://h:1", text) for text in re.findall(r'command = f?"(manage.*?)"', STATUS)]


def test_they_are_found():
    assert len(IN_MENU) >= 5
    assert len(IN_SENTENCES) >= 5


@pytest.mark.parametrize("command", [*IN_MENU, *IN_SENTENCES])
def test_it_is_a_command_of_ours(command):
    program, name, *arguments = shlex.split(command)
    assert program == "manage.py"
    load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(arguments)
