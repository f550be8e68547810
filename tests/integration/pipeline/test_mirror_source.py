"""The database of a mirrored Synapse through a fail-over: who was the primary, and is a standby for a while, is away."""

from __future__ import annotations

from contextlib import closing
from urllib.parse import quote

import pytest

from pipeline.errors import SourceAway, UnusableSource
from pipeline.mirror.source import SynapseSource
from tests.support.synapse_server import synapse_database
from tests.support.waiting import wait_until
from tests.torture.own_postgres import OwnPostgres


def test_a_primary_that_is_a_standby_now_is_away_and_a_standby_is_refused(tmp_path):
    with closing(OwnPostgres(tmp_path)) as server:
        where = server.parameters()
        url = f"postgresql://{where['user']}:{quote(where['password'])}@{where['host']}:{where['port']}/postgres"
        with synapse_database(url) as database, closing(SynapseSource(database)) as source:
            source.check()
            signal = tmp_path / "data" / "postgres" / "data" / "standby.signal"
            signal.touch()
            restart(server)
            with pytest.raises(SourceAway):  # the connection is lost
                source.check()
            with pytest.raises(SourceAway, match="is a standby now"):
                source.check()
            with closing(SynapseSource(database)) as first, pytest.raises(UnusableSource, match="Name the primary"):
                first.check()
            signal.unlink()
            restart(server)
            source.check()
            assert source.stored_positions() == {"events": {}, "backfill": {}}


def restart(server):
    server.kill_postmaster()
    wait_until(server.is_up)
