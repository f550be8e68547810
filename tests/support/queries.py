"""What a captured connection sent to the server, without what depends on the clock."""

from __future__ import annotations

from django.test.utils import CaptureQueriesContext

__all__ = ["sent"]


def sent(queries: CaptureQueriesContext) -> list[str]:
    """The captured statements. Left out: hints, of which a process sends at most one in 25 ms, so that their number is chance."""
    return [query["sql"] for query in queries.captured_queries if "pg_notify(" not in query["sql"]]
