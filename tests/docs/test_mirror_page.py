"""The page about mirrors: its commands are accepted, and its role may read what is read, no more."""

from __future__ import annotations

import re
import shlex

import pytest
from django.core.management import get_commands, load_command_class

from pipeline.management.commands.mirror import _arguments
from pipeline.mirror import source
from tests.support.session import PROJECT

PAGE = (PROJECT / "docs" / "how-to" / "mirror-a-synapse.md").read_text()
IMPORT_PAGE = (PROJECT / "docs" / "how-to" / "import-a-synapse-database.md").read_text()
COMMANDS = [shlex.split(line) for line in re.findall(r"^    manage\.py (.*)$", PAGE, re.MULTILINE)]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_is_accepted(words):
    name, *arguments = words
    options = vars(
        load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(arguments)
    )
    if name == "mirror":
        found = _arguments(options)
        assert found["source"].startswith("postgresql://reader@") and found["name"] == "mirror"


def test_mirrors_are_shown_in_three_ways():
    assert [words[-1] for words in COMMANDS if words[0] == "mirror"] == [
        "tcp://127.0.0.1:9092", "redis://127.0.0.1:6379?channel=example.org", "--once",
    ]  # fmt: skip


def test_the_role_may_read_what_is_read():
    granted = re.findall(r"^GRANT SELECT ON (?:SEQUENCE )?(.*) TO reader;$", PAGE, re.MULTILINE)
    imported = re.findall(r"^GRANT SELECT ON (.*) TO reader;$", IMPORT_PAGE, re.MULTILINE)
    assert ", ".join(granted) == ", ".join([*imported, *source.READ_TABLES, *source._SEQUENCES.values()])
