"""A page of a room as one user sees it, as functions of the database (pure).

One call reads a page: rows of ``events_event_timeline`` from a place on, of them those that ``events.visible_sql.sees``
lets pass, with what is given out of each. At most ``ROWS_READ`` rows are looked at, so a page can have fewer events than
were asked for, or none, and still not be the last: then it tells where reading ended.

They are functions because a page is asked for often and its query takes longer to plan than to run: the plan of a function
is kept for the connection. That plan must fit all values, so the limit of rows is written out and JSON is looked up event
by event.
"""

from __future__ import annotations

import re

from events.served_sql import SERVED, SERVED_JSON, SERVED_TYPES
from events.visible_sql import pruned, sees

__all__ = ["DROP_PAGES", "PAGE_AFTER", "PAGE_BEFORE", "ROWS_READ", "call_of"]

ROWS_READ = 1_000
"""Rows of a room that are looked at for one page."""

_PARAMETERS = {
    "room": "text",
    "user_id": "text",
    "peeking": "boolean",
    "recorded": "boolean",
    "cut": "bigint",
    "cut_depth": "bigint",
    "kept_since": "bigint",
    "topological": "bigint",
    "stream": "bigint",
    "base": "bigint",
    "writers": "text[]",
    "positions": "bigint[]",
    "wanted": "integer",
}


def _page(beyond: str, order: str) -> str:
    """The query: events, whether each is pruned for the user, and the last place that was read when the page is not full.

    (``topological``, ``stream``) is the place beyond which the page begins. ``base``, ``writers`` and ``positions`` are a
    vector token that covers the events: all of them up to the base, those of a named writer up to its position.
    """
    rows = f"""SELECT * FROM events_event
    WHERE room_id = %(room)s AND (topological_ordering, stream_ordering) {beyond} (%(topological)s, %(stream)s)
      AND stream_ordering <= least(%(cut)s, (SELECT max(top) FROM unnest(%(positions)s || %(base)s) AS top))
    ORDER BY topological_ordering {order}, stream_ordering {order}"""
    return f"""
WITH page AS MATERIALIZED (
  SELECT e.*, {pruned()} AS pruned FROM ({rows} LIMIT {ROWS_READ}) AS e CROSS JOIN (SELECT
    %(user_id)s AS user_id, %(peeking)s AS peeking, %(recorded)s AS recorded, %(cut)s AS cut, %(cut_depth)s AS cut_depth,
    %(kept_since)s AS kept_since) AS a
  WHERE e.stream_ordering <= coalesce((%(positions)s)[array_position(%(writers)s, e.instance_name)], %(base)s)
    AND {sees()}
  ORDER BY e.topological_ordering {order}, e.stream_ordering {order} LIMIT %(wanted)s
), last AS MATERIALIZED (
  SELECT * FROM ({rows} OFFSET {ROWS_READ - 1} LIMIT 1) AS row WHERE (SELECT count(*) FROM page) < %(wanted)s
)
SELECT {SERVED}, e.pruned, last.topological_ordering, last.stream_ordering
FROM (SELECT) AS one LEFT JOIN (page AS e {SERVED_JSON}) ON true LEFT JOIN last ON true
"""


def _function(name: str, query: str) -> str:
    parameters = ", ".join(f"p_{name} {kind}" for name, kind in _PARAMETERS.items())
    types = (*SERVED_TYPES, "boolean", "bigint", "bigint")
    columns = ", ".join(f"out_{number} {kind}" for number, kind in enumerate(types))
    query = re.sub(r"%[(]([a-z_]+)[)]s", r"p_\1", query)
    return f"""CREATE FUNCTION {name}({parameters}) RETURNS TABLE ({columns})
LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan SET enable_sort = off AS $page$
BEGIN
RETURN QUERY {query};
END $page$"""


def call_of(function: str) -> str:
    """The query that calls one of the functions, with named parameters."""
    return f"SELECT * FROM {function}({', '.join(f'%({name})s' for name in _PARAMETERS)})"


PAGE_BEFORE = _function("events_page_before", _page("<", "DESC"))
"""Makes the function that goes back in time: newest first."""
PAGE_AFTER = _function("events_page_after", _page(">", "ASC"))
"""Makes the function that goes on in time: oldest first."""
DROP_PAGES = "DROP FUNCTION events_page_before; DROP FUNCTION events_page_after"
