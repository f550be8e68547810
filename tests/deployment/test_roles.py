"""The roles of ``docs/deployment/postgresql/``: each may do what it is for, and no more."""

from __future__ import annotations

import psycopg2
import pytest


def test_the_sites_role_serves_and_writes(site):
    site.manage("append", "caches", "--count", "10")
    with site.connect("replsite_reader") as reader, reader.cursor() as cursor:
        cursor.execute("SELECT max(position) FROM streams_streamposition")
        assert cursor.fetchone()[0] >= 10
