"""What a purge deletes, or a removal of an archive, in a sentence."""

import pytest

from events.operations.purge_history import history_words
from events.operations.purge_room import room_words
from pipeline.operations.remove_archive import folder_words

TOLD = {"before_time": 1_795_312_800_000, "delete_local": False, "dry_run": False, "archive": None}


@pytest.mark.parametrize(
    ("told", "folder", "words"),
    [
        ({}, None, "messages before 22 Nov 2026 02:00 UTC: 1,833 deleted, 4,819 kept as outliers; no archive"),
        (
            {"dry_run": True, "archive": "/backup"}, None,
            "messages before 22 Nov 2026 02:00 UTC: 1,833 would be deleted, 4,819 kept as outliers; archive in /backup",
        ),
        (
            {"delete_local": True, "archive": "/backup"}, "/backup/r-1",
            "messages before 22 Nov 2026 02:00 UTC, those of this server too: 1,833 deleted, 4,819 kept as outliers; archived in "
            "/backup/r-1",
        ),
    ],
)  # fmt: skip
def test_history(told, folder, words):
    assert history_words({**TOLD, **told}, 1_833, 4_819, folder) == words


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ({"before": "$a\x1b"}, "messages below event $a\\x1b: 1 deleted, 0 kept as outliers; no archive"),
        ({"before_token": "t4-5"}, "messages below token t4-5: 1 deleted, 0 kept as outliers; no archive"),
    ],
)
def test_other_cuts(cut, words):
    told = {name: value for name, value in TOLD.items() if name != "before_time"} | cut
    assert history_words(told, 1, 0) == words


def test_a_room():
    told = {"dry_run": True, "block": True, "archive": None}
    assert (
        room_words(told, 1_000) == "the whole room with 1,000 events: would be deleted, and not made again; no archive"
    )


@pytest.mark.parametrize(
    ("more", "is_room_here", "words"),
    [
        ({}, True, "archive of !a:b, made 22 Nov 2026 02:00 UTC, 6.0 GB in 14 files: removed; messages that were purged "
         "meanwhile are gone with it"),
        ({"dry_run": True}, False, "archive of !a:b, made 22 Nov 2026 02:00 UTC, 6.0 GB in 14 files: would be removed; the room "
         "is in no other place here"),
        ({"what": "unfinished archive", "room_id": None, "files": 1}, False,
         "unfinished archive, last changed 22 Nov 2026 02:00 UTC, 6.0 GB in 1 file: removed"),
        ({"what": "export"}, False, "export of !a:b, made 22 Nov 2026 02:00 UTC, 6.0 GB in 14 files: removed"),
    ],
)  # fmt: skip
def test_the_removal_of_a_folder_tells_its_room_date_and_size(more, is_room_here, words):
    told = {
        "what": "archive", "room_id": "!a:b", "made_at": "22 Nov 2026 02:00 UTC", "bytes": 6_000_000_000, "files": 14,
        "dry_run": False,
    }  # fmt: skip
    assert folder_words({**told, **more}, is_room_here=is_room_here) == words
