"""A server that cannot start says why in the errors that its commands turn into one line."""

from __future__ import annotations

import pytest

from streams.db import driver
from streams.replication import serve
from streams.replication.transport.addresses import Address


def test_a_database_that_goes_away_during_the_start_is_named(monkeypatch):
    """It answered a moment ago, when it was looked at first."""

    async def fail(server: object) -> None:
        raise driver.OperationalError("the database system is not yet accepting connections\n")

    monkeypatch.setattr(serve, "_check_database", lambda: None)
    monkeypatch.setattr(serve._Server, "_start", fail)
    with pytest.raises(serve.DatabaseNotUsable, match=r"not yet accepting connections\. Start it"):
        serve.serve(None, serve.Endpoints(Address("127.0.0.1", 0)), lambda endpoints: None)
