"""The database functions that read a page of a room as one user sees it (pure: they are text).

One call reads events in timeline order (index ``events_event_timeline``), beginning at a given place. The call returns
the events that ``events.visibility.predicate_sql.sees`` accepts, with the columns that are given out. It examines at
most ``ROWS_READ`` rows. So a page may have fewer events than wanted, or none, without being the last. The result then
has the place at which reading ended.

For example, the newest events are m9, m8, m7 and m6, and Bob may not see m8. A page of two has m9 and m7, and ended at
m7. The next call begins there and examines m6 first.

Functions are used because pages are read often, and the query of a page takes longer to plan than to run. PostgreSQL
keeps the plan of a function for the connection. This plan must fit all values, so the limit of rows is a literal, and
JSON is looked up event by event.

Migrations have a text of their own. If you change a function here, add a migration that installs it.
"""

from __future__ import annotations

import re

from events.reading.served_sql import SERVED, SERVED_JSON, SERVED_TYPES
from events.visibility.predicate_sql import pruned, sees

LARGEST = 2**63 - 1
"""A number above every position."""
ROWS_READ = 1_000
"""The most rows of a room that are examined for one page."""

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
_AT_WRITER = "coalesce((%(positions)s)[array_position(%(writers)s, e.instance_name)], %(base)s)"


def _page(*, back: bool, sees: str, pruned: str) -> str:
    """Returns the query of a page: events, the pruned flag of each, and the place at which the next page begins.

    The place is that of the last row that was examined. It is NULL if the page is full, or if the room had fewer than
    ``ROWS_READ`` rows left to read.

    The parameters ``topological`` and ``stream`` are the place beyond which the page begins. ``base``, ``writers`` and
    ``positions`` are a vector token. This token covers everything up to the base, and everything of each of the writers
    up to the writer's position. A page that goes back has only events that the token covers. A page that goes forward
    has only events that the token does not cover.
    """
    beyond, order = ("<", "DESC") if back else (">", "ASC")
    highest = "(SELECT max(top) FROM unnest(%(positions)s || %(base)s) AS top)"
    bounds = f"least(%(cut)s, {highest})" if back else f"least(%(cut)s, {LARGEST}) AND stream_ordering > %(base)s"
    rows = f"""SELECT * FROM events_event
    WHERE room_id = %(room)s AND (topological_ordering, stream_ordering) {beyond} (%(topological)s, %(stream)s)
      AND stream_ordering <= {bounds}
    ORDER BY topological_ordering {order}, stream_ordering {order}"""
    return f"""
WITH page AS MATERIALIZED (
  SELECT e.*, {pruned} AS pruned FROM ({rows} LIMIT {ROWS_READ}) AS e CROSS JOIN (SELECT
    %(user_id)s AS user_id, %(peeking)s AS peeking, %(recorded)s AS recorded, %(cut)s AS cut, %(cut_depth)s AS cut_depth,
    %(kept_since)s AS kept_since) AS a
  WHERE e.stream_ordering {"<=" if back else ">"} {_AT_WRITER} AND {sees}
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


def _typed(query: str) -> str:
    return re.sub(r"%[(]([a-z_]+)[)]s", lambda found: f"{found[0]}::{_PARAMETERS[found[1]]}", query)


_FROM_LEAVE = "access.out_cut IS NOT NULL AND (access.out_cut_depth, access.out_cut) < (%(topological)s, %(stream)s)"


def _for_user(function: str, *, from_leave: bool = False) -> str:
    # The access is read in the same query, so access and page come from one snapshot. With ``from_leave`` the page of a
    # user who has left begins at the leave or below. It skips events on another branch of the graph that are deeper
    # than the leave, even if they arrived before the leave.
    values = {}
    if from_leave:
        values["topological"] = f"CASE WHEN {_FROM_LEAVE} THEN access.out_cut_depth ELSE %(topological)s END"
        values["stream"] = f"CASE WHEN {_FROM_LEAVE} THEN access.out_cut + 1 ELSE %(stream)s END"
    return f"{_ACCESS_AND} {_call(function, values)} AS page ON true"


def _call(function: str, values: dict[str, str]) -> str:
    # ``values`` replaces the usual values of parameters
    access = {name: f"access.out_{name}" for name in ("peeking", "recorded", "cut", "cut_depth")}
    wanted = "CASE WHEN access.known AND access.readable THEN %(wanted)s ELSE 0 END"
    given = {name: f"%({name})s" for name in _PARAMETERS} | access | {"wanted": wanted} | values
    return f"{function}({', '.join(given.values())})"


_ACCESS_AND = """SELECT access.*, page.* FROM events_access(%(user_id)s, ARRAY[%(room)s]) AS access
LEFT JOIN LATERAL"""
_SHOWN_AT_ALL = "NOT e.outlier AND NOT e.soft_failed AND e.rejected_reason IS NULL"

PAGE_BEFORE = _function("events_page_before", _page(back=True, sees=sees(), pruned=pruned()))
"""Creates the function that reads back in time, newest first."""
PAGE_AFTER = _function("events_page_after", _page(back=False, sees=sees(), pruned=pruned()))
"""Creates the function that reads forward in time, oldest first."""

FOR_USER = {True: _for_user("events_page_before"), False: _for_user("events_page_after")}
"""The queries of a page as a user sees it; ``True`` reads back in time. The columns of ``events_access`` come first."""
SIDES = f"""{_ACCESS_AND} (
  SELECT page.*, true FROM {_call("events_page_before", {"base": str(LARGEST)})} AS page
  UNION ALL
  SELECT page.*, false FROM {_call("events_page_after", {"base": str(-LARGEST)})} AS page
) AS page ON true"""
"""The query of two pages that begin at one place. The last column is true for the page that reads back in time."""
FROM_LEAVE = _for_user("events_page_before", from_leave=True)
"""The query for reading back in time, which begins at the user's own leave or below."""
UNFILTERED = {back: _typed(_page(back=back, sees=_SHOWN_AT_ALL, pruned="false")) for back in (True, False)}
"""The queries of a page that is not filtered for a user; ``True`` reads back in time."""
