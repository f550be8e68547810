"""A server that cannot start says why in the errors that its commands turn into one line."""

from __future__ import annotations

import pytest

from streams import database
from streams.replication import serving
from streams.replication.addresses import Address


def test_a_database_that_goes_away_during_the_start_is_named(monkeypatch):
    """It answered a moment ago, when it was looked at first."""

    def fail(server: object) -> None:
        raise database.OperationalError("the database system is not yet accepting connections\n")

    monkeypatch.setattr(serving, "_check_database", lambda: None)
    monkeypatch.setattr(serving, "_attend", lambda *_: None)
    monkeypatch.setattr(serving._Server, "run", fail)
    with pytest.raises(serving.DatabaseNotUsable, match=r"not yet accepting connections\. Start it"):
        serving.serve(None, serving.Endpoints(Address("127.0.0.1", 0)), lambda endpoints: None)
