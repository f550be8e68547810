"""A large room put into the tables by PostgreSQL itself, in a line: messages of another server, and a new member now and then.

Quick, because what is measured afterwards is reading or deleting it: the JSON has the size of a real event and no valid hashes.
"""

from __future__ import annotations

from django.db import connection

__all__ = ["ROOM", "STATE_EVERY", "fill_room"]

ROOM = "!large:filled.example.org"
STATE_EVERY = 20
"""One event in so many is the membership of another user."""
_WRITER = "filled"
_NUMBERED = f"""
SELECT n, %(first)s + n AS place, '$' || translate(encode(sha256(n::text::bytea), 'base64'), '+/=', '-_') AS event_id,
    '$' || translate(encode(sha256((n - 1)::text::bytea), 'base64'), '+/=', '-_') AS prev_id,
    (n - 1) %% {STATE_EVERY} = 0 AS is_state, (n - 1) / {STATE_EVERY} AS member FROM generate_series(1, %(events)s) AS n
"""
_STATEMENTS = (
    f"""
    INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, state_key, sender, topological_ordering,
        origin_server_ts, membership, state_group)
    SELECT place, '{_WRITER}', event_id, %(room)s, CASE WHEN is_state THEN 'm.room.member' ELSE 'm.room.message' END,
        CASE WHEN is_state THEN '@u' || member || ':filled.example.org' END, '@u' || member || ':filled.example.org', n,
        1600000000000 + n * 1000, CASE WHEN is_state THEN 'join' END, %(group)s + member
    FROM ({_NUMBERED}) AS numbered ORDER BY n
    """,
    f"""
    INSERT INTO events_eventjson (event_id, room_version, json)
    SELECT event_id, '10', convert_to('{{"auth_events":["' || prev_id || '"],"content":{{"body":"' || repeat('word ', 40)
        || '","msgtype":"m.text"}},"depth":' || n || ',"signatures":{{"x":{{"ed25519:1":"'
        || encode(sha512(event_id::bytea), 'base64') || '"}}}},"prev_events":["' || prev_id || '"]}}', 'UTF8')
    FROM ({_NUMBERED}) AS numbered ORDER BY n
    """,
    f"""
    INSERT INTO events_eventedge (event_id, prev_event_id)
    SELECT event_id, prev_id FROM ({_NUMBERED}) AS numbered WHERE n > 1 ORDER BY n
    """,
    f"""
    INSERT INTO events_eventauth (event_id, auth_event_ids)
    SELECT event_id, ARRAY[]::text[] FROM ({_NUMBERED}) AS numbered WHERE is_state ORDER BY n
    """,
    f"""
    INSERT INTO state_stategroup (id, room_id, prev_group, chain, hops, keys, rows_to_read)
    SELECT %(group)s + member, %(room)s, CASE WHEN member > 0 THEN %(group)s + member - 1 END, %(group)s, 0,
        member + 1, member + 1
    FROM ({_NUMBERED}) AS numbered WHERE is_state ORDER BY n
    """,
    f"""
    INSERT INTO state_stategroupdelta (chain, state_group, type, state_key, event_id)
    SELECT %(group)s, %(group)s + member, 'm.room.member', '@u' || member || ':filled.example.org', event_id
    FROM ({_NUMBERED}) AS numbered WHERE is_state ORDER BY n
    """,
    f"""
    INSERT INTO events_currentstate (room_id, type, state_key, event_id, membership)
    SELECT %(room)s, 'm.room.member', '@u' || member || ':filled.example.org', event_id, 'join'
    FROM ({_NUMBERED}) AS numbered WHERE is_state
    """,
    f"""
    INSERT INTO events_forwardextremity (event_id, room_id)
    SELECT event_id, %(room)s FROM ({_NUMBERED}) AS numbered WHERE n = %(events)s
    """,
    "INSERT INTO events_room (room_id, room_version) VALUES (%(room)s, '10')",
    """
    INSERT INTO events_eventvisibility (room_id, kind, first) VALUES (%(room)s, 'shared', %(first)s + 1)
    """,
    """
    INSERT INTO streams_streamposition (stream, instance_name, position, last_write_position, state)
    VALUES ('events', 'filled', %(first)s + %(events)s, %(first)s + %(events)s, 'retired')
    """,
    "SELECT setval('events_event_stream_seq', %(first)s + %(events)s)",
    "SELECT setval(pg_get_serial_sequence('state_stategroup', 'id'), %(group)s + %(events)s)",
)


def fill_room(events: int, room_id: str = ROOM) -> str:
    """Store a room of so many events; returns its ID. Tables are vacuumed and analysed afterwards."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT last_value FROM events_event_stream_seq), coalesce(max(id), 0) FROM state_stategroup"
        )
        first, group = cursor.fetchone()
        for statement in _STATEMENTS:
            cursor.execute(statement, {"events": events, "room": room_id, "first": first, "group": group + 1})
        for table in ("events_event", "events_eventjson", "events_eventedge", "events_eventauth", "state_stategroup"):
            cursor.execute(f"VACUUM ANALYZE {table}")
    return room_id
