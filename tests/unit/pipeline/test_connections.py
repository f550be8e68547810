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


def test_a_string_that_cannot_be_read_is_not_repeated(opened):
    with pytest.raises(UnusableArguments) as refused:
        connections.connect("postgresql://u:Wonder5-land@h:x y/db?nonsense", "me")
    assert "Wonder5" not in str(refused.value)
    assert opened == []
