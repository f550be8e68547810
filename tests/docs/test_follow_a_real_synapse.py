"""The how-to about real servers names commands that exist: each is parsed and checked as the program does it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from django.core.management import load_command_class

from streams.management.commands.follow import _request

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "follow-a-real-synapse.md"


def commands(name: str) -> list[list[str]]:
    lines = re.findall(rf"^    manage\.py {name} (.*)$", PAGE.read_text(), re.MULTILINE)
    assert lines
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("arguments", commands("follow"), ids=" ".join)
def test_every_follow_command_of_the_page_is_accepted(arguments):
    parser = load_command_class("streams", "follow").create_parser("manage.py", "follow")
    request = _request(vars(parser.parse_args(arguments)))
    assert request.server_name == "example.org"
    assert not request.uses_table
    assert not request.registers
    assert bool(request.http) == ("http" in arguments)
    assert request.record == ("main" if "--record" in arguments else "")
