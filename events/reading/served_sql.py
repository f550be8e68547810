"""The columns of an event that is given out (pure).

``SERVED`` belongs in the select list of a query whose events have the alias ``e``, and ``SERVED_JSON`` at the end of
its ``FROM``. JSON and redactions are looked up event by event, whatever number of rows the planner expects. A redaction
is looked up only for redacted events. The table refuses JSON that is not UTF-8, so PostgreSQL sends it as text. As text the
JSON takes half the bytes of the hex digits of ``bytea``. Encoding the text gives the stored bytes again.
"""

from __future__ import annotations

SERVED = """
e.event_id, e.room_id, j.room_version, e.type, e.state_key, e.sender, e.stream_ordering, e.topological_ordering,
e.instance_name, e.origin_server_ts, e.redacts, convert_from(j.json, 'UTF8'), e.redacted_by,
(SELECT convert_from(r.json, 'UTF8') FROM events_eventjson r WHERE r.event_id = e.redacted_by),
(SELECT r.redacts FROM events_event r WHERE r.event_id = e.redacted_by),
(SELECT r.redacted_by IS NOT NULL OR EXISTS (SELECT FROM events_eraseduser x WHERE x.user_id = r.sender)
 FROM events_event r WHERE r.event_id = e.redacted_by)
"""
SERVED_JSON = """
JOIN LATERAL (SELECT x.room_version, x.json FROM events_eventjson x WHERE x.event_id = e.event_id OFFSET 0) j ON true
"""

_ID = "character varying"
SERVED_TYPES = (
    *(_ID, _ID, "text", _ID, _ID, _ID, "bigint", "bigint"),
    *("text", "bigint", _ID, "text", _ID),
    *("text", _ID, "boolean"),
)
"""The SQL types of the columns, for functions that return them."""
