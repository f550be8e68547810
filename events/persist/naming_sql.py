"""The database function that finds the state events which name given events as auth events (pure: it is text).

Nearly all state events of a room have the same few auth events. So PostgreSQL would expect many rows for any event, and
read the whole table to find a few. In the function, sequential scans are switched off and the plan is kept.

Migrations have a text of their own. If you change the function here, add a migration that installs it.
"""

from __future__ import annotations

NAMING_PER_EVENT = 500
"""The most state events that are read for one auth event. If it has more, these are enough to find one that counts."""

#: Returns the state events, of any room, that have one of the events ``wanted`` as auth event. Uses the index
#: ``events_eventauth_named``. The room is NULL if the state event itself is not stored.
EVENTS_NAMING = f"""
CREATE FUNCTION events_naming(wanted character varying[]) RETURNS TABLE (
  named character varying, naming character varying, naming_type character varying, naming_key character varying,
  naming_room character varying
) LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $naming$
BEGIN
RETURN QUERY SELECT asked.id, above.event_id, e.type, e.state_key, e.room_id
FROM unnest(wanted) AS asked (id) CROSS JOIN LATERAL (
    SELECT a.event_id FROM events_eventauth a WHERE a.auth_event_ids @> ARRAY[asked.id] LIMIT {NAMING_PER_EVENT}
) AS above LEFT JOIN events_event e ON e.event_id = above.event_id;
END $naming$
"""
