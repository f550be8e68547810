"""Which databases are no PostgreSQL server, by what they say of themselves."""

from __future__ import annotations

import pytest

from streams.holds.weaknesses import imitation

POSTGRES = "PostgreSQL 18.6 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 14.2.1, 64-bit"


@pytest.mark.parametrize(
    ("version", "extensions", "product"),
    [
        (POSTGRES, "plpgsql", ""),
        ("PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu", "plpgsql pg_stat_statements citext", ""),
        (POSTGRES, "plpgsql citus", "Citus"),
        (POSTGRES, "spock", "Spock"),
        ("CockroachDB CCL v25.1.0 (x86_64-pc-linux-gnu, built 2025/02/10)", "", "CockroachDB"),
        ("PostgreSQL 15.12-YB-2025.1.0.0-b0 on x86_64-pc-linux-gnu", "plpgsql", "YugabyteDB"),
        ("PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC, Redshift 1.0.12103", "", "Redshift"),
        ("Something else 1.0 on linux", "", "Something else 1.0"),
    ],
)
def test_an_imitation_is_named(version: str, extensions: str, product: str):
    assert imitation(version, extensions) == product
