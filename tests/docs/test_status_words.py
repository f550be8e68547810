"""The page about status words names exactly those that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replsite.status.words import MEANINGS, ExpectedWord, HealthWord, HoldWord, JobWord, ReaderWord, WriterWord

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "status-words.md").read_text()


def first_cells(heading):
    """The code words in the first column of the table below a heading."""
    section = TEXT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("A writer on a stream", WriterWord),
        ("An open append", [HoldWord.OPEN]),
        ("An expected writer", ExpectedWord),
        ("A job", JobWord),
        ("A reader on a stream", ReaderWord),
        ("The whole", HealthWord),
    ],
)
def test_every_status_word_is_explained(heading, words):
    assert sorted(first_cells(heading)) == sorted(words)


def test_the_page_of_the_site_has_the_same_tables():
    for heading, _, meanings in MEANINGS:
        section = TEXT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
        rows = re.findall(r"^\| `([^`]+)` \| (.*?)(?: \| (\w+))? \|$", section, re.MULTILINE)
        assert rows == [(str(one), one.rule, one.severity) for one in meanings]
