"""The parameters of connections without Django, whichever form the connection string has."""

from __future__ import annotations

import pytest
from psycopg2.extensions import parse_dsn

from pipeline import connections
from streams.jobs.errors import UnusableArguments


@pytest.fixture(autouse=True)
def opened(monkeypatch) -> list[str]:
    """The connection strings with which connections are opened."""
    found: list[str] = []
    monkeypatch.setattr(connections.psycopg2, "connect", found.append)
    monkeypatch.delenv("PGOPTIONS", raising=False)
    return found


@pytest.mark.parametrize("dsn", ["postgresql://u:p%20w@h/db", "user=u password='p w' host=h dbname=db"])
def test_settings_are_options_of_the_connection(opened, dsn):
    connections.connect(dsn, "me")
    found = parse_dsn(opened[0])
    assert [found[name] for name in ("user", "password", "host", "dbname", "application_name")] == [
        "u", "p w", "h", "db", "me",
    ]  # fmt: skip
    assert found["client_encoding"] == "UTF8"
    assert found["options"].startswith("-c standard_conforming_strings=on ")


@pytest.mark.parametrize(
    ("given", "environment"),
    [("-c search_path=x", ""), ("", "-c search_path=x"), ("-c search_path=x", "-c search_path=y")],
)
def test_options_that_were_given_stay(opened, monkeypatch, given, environment):
    monkeypatch.setenv("PGOPTIONS", environment)
    connections.connect(f"host=h options='{given}'" if given else "host=h", "me")
    assert parse_dsn(opened[0])["options"].startswith("-c search_path=x -c standard_conforming_strings=on ")


SEVERAL = "postgresql://u@a,b/db"


@pytest.mark.parametrize(
    "dsn", [SEVERAL, f"{SEVERAL}?target_session_attrs=prefer-standby", "hostaddr=10.0.0.1,10.0.0.2", ""]
)
@pytest.mark.parametrize("open_it", [connections.connect, connections.connect_arrow])
def test_any_of_several_servers_is_refused(opened, monkeypatch, dsn, open_it):
    """Positions of one standby and rows of another, which was behind: facts were passed over in silence."""
    if not dsn:
        monkeypatch.setenv("PGHOST", "a,b")
    with pytest.raises(UnusableArguments, match="several hosts"):
        open_it(dsn, "me")
    assert opened == []


@pytest.mark.parametrize("attributes", ["primary", "read-write"])
def test_the_primary_of_several_servers_may_be_meant(opened, attributes):
    connections.connect(f"{SEVERAL}?target_session_attrs={attributes}", "me")
    assert parse_dsn(opened[0])["host"] == "a,b"


def test_a_string_that_cannot_be_read_is_not_repeated(opened):
    with pytest.raises(UnusableArguments) as refused:
        connections.connect("postgresql://u:Wonder5-land@h:x y/db?nonsense", "me")
    assert "Wonder5" not in str(refused.value)
    assert opened == []
