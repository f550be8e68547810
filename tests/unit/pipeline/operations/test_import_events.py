"""What may be queued as an import: files of one folder, and databases that the operator named."""

from __future__ import annotations

import pytest

from pipeline.operations.import_events import ImportEvents, _opened
from streams.jobs.errors import UnusableArguments


@pytest.fixture(autouse=True)
def folder(tmp_path, settings):
    settings.REPLSITE_IMPORT_FOLDER = tmp_path / "import"
    settings.REPLSITE_IMPORT_FOLDER.mkdir()
    return settings.REPLSITE_IMPORT_FOLDER


@pytest.mark.parametrize(
    "name", ["a.jsonl", "rooms/b.parquet", "postgresql:///?service=old-site", "postgres://?service=x"]
)
def test_names_in_the_folder_and_services_are_taken(name):
    assert ImportEvents().check({"sources": [name]}) == {"sources": [name], "as_history": False}


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../secret_key", "a/../../b", "", "a\0b", "postgresql://u:p@h/db", "postgresql:///?service=a&host=h",
     "postgresql:///?service=a/../b", "http://h/x"],
)  # fmt: skip
def test_other_places_are_not(name):
    with pytest.raises(UnusableArguments, match="cannot be queued"):
        ImportEvents().check({"sources": [name]})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "sources must be a list of names"),
        ({"sources": []}, "sources must be a list"),
        ({"sources": "a.jsonl"}, "sources must be a list"),
        ({"sources": [1]}, "sources must be a list"),
        ({"sources": ["a"] * 10_001}, "at most 10,000"),
        ({"sources": ["a"], "as_history": "yes"}, "as_history must be true or false"),
        ({"sources": ["a"], "master": "spark://elsewhere:7077"}, "Unknown arguments: master"),
    ],
)
def test_other_arguments_are_refused(arguments, words):
    with pytest.raises(UnusableArguments, match=words):
        ImportEvents().check(arguments)


def test_a_link_that_leads_out_of_the_folder_is_refused_when_it_is_opened(folder, tmp_path):
    (tmp_path / "secret").write_text("s")
    (folder / "in.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(UnusableArguments, match="leads out of the folder"):
        _opened("in.jsonl")


def test_a_name_is_a_file_of_the_folder(folder):
    assert _opened("a/b.jsonl") == str(folder / "a" / "b.jsonl")
