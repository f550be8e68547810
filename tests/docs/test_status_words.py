"""The pages about status words and metrics name exactly those that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replsite.metrics.table import OWN, PROCESS
from replsite.status.verdicts import ExpectedWord, HealthWord, JobWord, ReaderWord, WriterWord
from replsite.status.words import MEANINGS

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def first_cells(page, heading):
    """The code words in the first column of the table below a heading."""
    text = (REFERENCE / page).read_text()
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("A writer on a stream", WriterWord),
        ("An expected writer", ExpectedWord),
        ("A job", JobWord),
        ("A reader on a stream", ReaderWord),
        ("The whole", HealthWord),
    ],
)
def test_every_status_word_is_explained(heading, words):
    assert sorted(first_cells("status-words.md", heading)) == sorted(words)


def test_the_page_of_the_site_has_the_same_tables():
    text = (REFERENCE / "status-words.md").read_text()
    for heading, _, meanings in MEANINGS:
        section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
        rows = re.findall(r"^\| `([^`]+)` \| (.*?)(?: \| (\w+))? \|$", section, re.MULTILINE)
        assert rows == [(one.word, one.rule, one.severity) for one in meanings]


@pytest.mark.parametrize(
    ("heading", "metrics"),
    [("The cluster", OWN), ("A process", PROCESS)],
)
def test_every_metric_is_explained_with_its_labels(heading, metrics):
    named = {metric.exported + (f"{{{','.join(metric.labels)}}}" if metric.labels else "") for metric in metrics}
    assert set(first_cells("metrics.md", heading)) == named
