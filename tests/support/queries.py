"""What a captured connection sent to the server, without what depends on the clock, or on what it has sent before."""

from __future__ import annotations

from django.test.utils import CaptureQueriesContext

__all__ = ["is_asked", "sent"]


def is_asked(sql: str, *_: object) -> bool:
    """False for hints, of which a process sends at most one in 25 ms, so that their number is chance, and for what a connection
    sends once, before a statement that it repeats.
    """
    return "pg_notify(" not in sql and not sql.startswith(("PREPARE ", "SET plan_cache_mode"))


def sent(queries: CaptureQueriesContext) -> list[str]:
    """The captured statements that are asked."""
    return [query["sql"] for query in queries.captured_queries if is_asked(query["sql"])]
