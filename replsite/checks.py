"""System checks of the site: what would fail later, said before anything runs.

    replsite.E001   a database that is not PostgreSQL

The checks open no connection.
"""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import connections

__all__ = ["check_databases"]


def check_databases(**_: Any) -> list[CheckMessage]:
    """Every configured database must be PostgreSQL; the engine is looked at, the server is not asked."""
    return [
        Error(
            f"The database {alias!r} is {connections[alias].vendor}; replsite needs PostgreSQL.",
            hint=(
                "Streams are built on sequences, advisory locks, NOTIFY, COPY and range types, which others lack."
                " Set DATABASE_URL=postgres://USER:PASSWORD@HOST:PORT/NAME, or unset it to use the embedded server."
            ),
            id="replsite.E001",
        )
        for alias in connections
        if connections[alias].vendor != "postgresql"
    ]
