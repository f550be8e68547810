"""Streams that a 1.43 client asks the main process for: whoever wrote, the wire says ``master``, in the order of the IDs."""

from __future__ import annotations

import json

import pytest

from streams import registry
from streams.catalog.models import Presence
from tests.support.wire_client import start_replication
from tests.support.writing import as_instance

pytestmark = pytest.mark.django_db(transaction=True)


def append(user: str, instance: str) -> int:
    """A user's presence, written by that instance."""
    with as_instance(instance):
        return registry.get("presence").append(
            Presence(
                user_id=user,
                state="online",
                last_active_ts=1,
                last_federation_update_ts=2,
                last_user_sync_ts=3,
                currently_active=True,
            )
        )[0]


def followed(run_manage, port: int, *arguments: str) -> list[dict]:
    done = run_manage(
        "follow", f"tcp://127.0.0.1:{port}", "--streams", "presence", "--json", "--timeout", "30", *arguments
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [line for line in found if "row" in line]


@pytest.mark.parametrize("view", ["writer", "linear"])
def test_a_follower_that_was_away_gets_all_writers_facts_under_one_name(start_manage, run_manage, view):
    port = start_replication(start_manage)
    ids = [append("@a:x", "north"), append("@b:x", "south"), append("@c:x", "north")]
    rows = followed(run_manage, port, "--view", view, "--from", "presence=1", "--until", f"presence={ids[-1]}")
    assert [(row["token"], row["instance"], row["row"][0]) for row in rows] == [
        (ids[0], "master", "@a:x"),
        (ids[1], "master", "@b:x"),
        (ids[2], "master", "@c:x"),
    ]
