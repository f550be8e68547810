"""The page about a Synapse's database: its commands parse, and the role that it makes may read what the import reads, no more."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from django.core.management import get_commands, load_command_class

from pipeline.frames.sources import synapse_db
from tests.support.session import PROJECT

PAGE = (PROJECT / "docs" / "how-to" / "import-a-synapse-database.md").read_text()
READ = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))


def test_the_role_may_read_what_is_read() -> None:
    granted = re.search(r"GRANT SELECT ON (.*) TO reader;", PAGE)[1]
    assert set(granted.split(", ")) == READ


def test_the_tables_of_the_page_are_those_of_the_queries() -> None:
    source = Path(synapse_db.__file__).read_text()
    used = set(re.findall(r"\b(?:FROM|JOIN) ([a-z_]+)\b", source)) - {"information_schema", "sqlite_master"}
    assert used == READ


def test_the_refused_schema_is_the_one_that_the_page_names() -> None:
    named = {int(number) for number in re.findall(r"schema version (\d+)", PAGE)}
    assert named == {synapse_db.OLDEST_SCHEMA, synapse_db.NEWEST_SCHEMA}


def test_every_command_of_the_page_is_accepted() -> None:
    lines = re.findall(r"^    manage\.py (.*)$", PAGE, re.MULTILINE) + re.findall(r"`manage\.py (jobs queue.*?)`", PAGE)
    assert len(lines) == 4
    for line in lines:
        name, *arguments = shlex.split(line)
        assert load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(arguments)
