"""What the kinds of job take as arguments, and what they say of those that cannot be used."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from events.operations.censor import Censor
from events.operations.purge_history import PurgeHistory
from events.operations.purge_orphans import PurgeOrphans
from events.operations.purge_retention import PurgeRetention
from events.operations.purge_room import PurgeRoom
from pipeline.operations.archive import Archive
from pipeline.operations.compress_state import CompressState
from pipeline.operations.export import Export
from pipeline.operations.resync_and_room_mend import Resync
from streams.jobs.arguments import Argument, Type
from streams.jobs.errors import UnusableArguments
from streams.operations.check_streams import CheckStreams

ROOM = {"room": "!r:a.test"}
CUT = {**ROOM, "before": "$e"}


@pytest.fixture(autouse=True)
def folder(tmp_path, settings):
    settings.REPLSITE_ARCHIVE_FOLDER = tmp_path / "archives"


@pytest.mark.parametrize(
    ("kind", "needed", "flags"),
    [
        (Archive(), {**ROOM, "folder": "."}, ["delete_local"]),
        (Censor(), {}, ["dry_run"]),
        (CompressState(), {}, ["dry_run"]),
        (PurgeHistory(), CUT, ["delete_local", "dry_run"]),
        (PurgeOrphans(), {}, ["dry_run"]),
        (PurgeRetention(), {}, ["dry_run"]),
        (PurgeRoom(), ROOM, ["force", "block", "dry_run"]),
        (Resync(), {"what": "state"}, ["dry_run"]),
    ],
)
def test_what_is_true_or_false_is_never_taken_from_a_word(kind, needed, flags):
    for name in flags:
        assert kind.check(needed)[name] is False
        assert kind.check({**needed, name: True})[name] is True
        for word in ("false", "no", 0, 1, []):
            with pytest.raises(UnusableArguments, match=f"{name} must be true or false"):
                kind.check({**needed, name: word})


def test_what_is_not_said_is_false():
    force = Argument("force", Type.FLAG, "by force")
    assert force.value({}) is False and force.value({"force": None}) is False


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        (CheckStreams(), {"all": True}, r"Unknown arguments: all\. There are: none"),
        (Censor(), {"days": float("nan")}, "days must be a number from 0 to 36,500"),
        (Censor(), {"days": True}, "days must be a number"),
        (CompressState(), {"rooms": "!r"}, "rooms must be a list"),
        (CompressState(), {"least_saving": float("inf")}, "least_saving must be a number from 0 to 100"),
        (PurgeHistory(), ROOM, "Give one of before, before_time, before_token"),
        (PurgeHistory(), {**CUT, "before_time": 5}, "Give one of before"),
        (PurgeHistory(), {**ROOM, "before_time": 2**63}, "before_time must be a date .*milliseconds since 1970"),
        (
            PurgeHistory(),
            {**ROOM, "before_time": "yesterday"},
            "before_time must be a date .*milliseconds since 1970",
        ),
        (PurgeHistory(), {**ROOM, "before_token": "t"}, "token"),
        (PurgeHistory(), {"room": "", "before": "$e"}, "room must be the ID of a room"),
        (PurgeHistory(), {**CUT, "spark": True}, "spark and master are for the archive"),
        (PurgeHistory(), {**CUT, "archive": "../elsewhere"}, "is not below"),
        (PurgeOrphans(), {"room": 5}, "room must be the ID of a room"),
        (PurgeRoom(), {"room": None}, "room must be the ID of a room"),
        (PurgeRoom(), {**ROOM, "sure": True}, "Unknown arguments: sure"),
        (Resync(), {"what": "everything"}, "what must be one of state, "),
        (Resync(), {"what": "positions", "rooms": ["!r"]}, "Positions are of streams"),
        (Resync(), {"what": "caches", "master": "local[2]"}, "asks the database alone"),
        (Resync(), {"what": "state", "rooms": ["!a\0b"]}, "is no room ID"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_name(kind, arguments, words):
    with pytest.raises(UnusableArguments, match=words):
        kind.check(arguments)


@pytest.mark.parametrize(
    ("text", "day"),
    [("2026-01-31", "2026-01-31"), ("1769860801000", "2026-01-31"), (None, None)],
)
def test_days_of_an_export(text, day):
    assert Export().check({"to": "x", "since": text})["since"] == day


def test_an_age_of_an_export_is_a_day():
    found = date.fromisoformat(Export().check({"to": "x", "until": "30d"})["until"])
    assert timedelta(days=29) <= datetime.now(UTC).date() - found <= timedelta(days=31)


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026-01-31T12:00", 20260131, ""])
def test_what_is_no_day_is_refused(text):
    with pytest.raises(UnusableArguments, match="since must be a day such as 2026-01-31, or an age such as 30d"):
        Export().check({"to": "x", "since": text})
