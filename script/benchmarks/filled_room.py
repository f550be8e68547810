"""Large rooms put into the tables by PostgreSQL itself, each in a line: messages, and the membership of a user now and then.

Quick, because what is measured afterwards is reading or deleting them: the JSON has the size of a real event and no valid hashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from django.db import connection

__all__ = ["ROOM", "SERVER", "STATE_EVERY", "Shape", "fill_room", "fill_rooms", "room_id"]

SERVER = "filled.example.org"
ROOM = f"!large:{SERVER}"
STATE_EVERY = 20
"""One event in so many is a membership."""
_WRITER = "filled"
_TABLES = (
    "events_event",
    "events_eventjson",
    "events_eventedge",
    "events_eventauth",
    "events_currentstate",
    "state_stategroup",
    "state_stategroupdelta",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the rooms look like. Their events are mixed, as a server receives them.

    ``users`` is the number of users of a room, who change their memberships in turn. If it is 0, each membership is that
    of a new user. A user is in about two rooms. If ``copy_every`` is set, a room's state is stored in full before every so
    many changes of it, as other servers do.
    """

    events: int
    rooms: int = 1
    users: int = 0
    copy_every: int = 0
    first_room: str = ROOM

    def names(self) -> dict[str, object]:
        """The parameters of the statements."""
        changes = ceil(ceil(self.events / self.rooms) / STATE_EVERY)
        return {
            "events": self.events,
            "rooms": self.rooms,
            "users": self.users or changes,
            "copy": self.copy_every or changes,
            "changes": changes,
            "room": self.first_room,
        }


def room_id(number: int, first_room: str = ROOM) -> str:
    """The ID of a room; the first has the number 0."""
    return f"!{number}{first_room[1:]}" if number else first_room


_ROOM_ID = "CASE WHEN room_no = 0 THEN %(room)s ELSE '!' || room_no || substr(%(room)s, 2) END"
_EVENT_ID = "'$' || translate(encode(sha256(({place})::text::bytea), 'base64'), '+/=', '-_')"
_USER_ID = f"'@u' || (room_no * greatest(%(users)s / 2, 1) + change %% %(users)s) || ':{SERVER}'"
_PLACE_OF_CHANGE = f"%(first)s + change * {STATE_EVERY} * %(rooms)s + room_no + 1"
#: ``change`` is the number of the room's last change of state, ``place`` the event's position in the stream. A group has an odd
#: number; the copy of the state before it has the even number below.
_NUMBERED = f"""
SELECT n, place, room_no, depth, change, is_state, {_ROOM_ID} AS room_id, {_USER_ID} AS user_id,
    {_EVENT_ID.format(place="place")} AS event_id, {_EVENT_ID.format(place="place - %(rooms)s")} AS prev_id,
    first_group + 2 * change + 1 AS state_group, change / %(copy)s * %(copy)s AS head,
    first_group + 2 * (change / %(copy)s * %(copy)s) + (change < %(copy)s)::int AS chain
FROM (
    SELECT n, %(first)s + n AS place, (n - 1) %% %(rooms)s AS room_no, (n - 1) / %(rooms)s + 1 AS depth,
        (n - 1) / %(rooms)s / {STATE_EVERY} AS change, (n - 1) / %(rooms)s %% {STATE_EVERY} = 0 AS is_state,
        %(group)s + (n - 1) %% %(rooms)s * 2 * %(changes)s AS first_group
    FROM generate_series(1, %(events)s) AS n
) AS counted
"""
_STATEMENTS = (
    f"""
    SET LOCAL streams.maintenance = on;
    INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, state_key, sender, topological_ordering,
        origin_server_ts, membership, state_group)
    SELECT place, '{_WRITER}', event_id, room_id, CASE WHEN is_state THEN 'm.room.member' ELSE 'm.room.message' END,
        CASE WHEN is_state THEN user_id END, user_id, depth, 1600000000000 + n * 1000, CASE WHEN is_state THEN 'join' END,
        state_group
    FROM ({_NUMBERED}) AS numbered ORDER BY n
    """,
    f"""
    INSERT INTO events_eventjson (event_id, room_version, json)
    SELECT event_id, '10', convert_to('{{"auth_events":["' || prev_id || '"],"content":{{"body":"' || repeat('word ', 40)
        || '","msgtype":"m.text"}},"depth":' || depth || ',"signatures":{{"x":{{"ed25519:1":"'
        || encode(sha512(event_id::bytea), 'base64') || '"}}}},"prev_events":["' || prev_id || '"]}}', 'UTF8')
    FROM ({_NUMBERED}) AS numbered ORDER BY n
    """,
    f"""
    INSERT INTO events_eventedge (event_id, prev_event_id)
    SELECT event_id, prev_id FROM ({_NUMBERED}) AS numbered WHERE depth > 1 ORDER BY n
    """,
    f"""
    INSERT INTO events_eventauth (event_id, auth_event_ids)
    SELECT event_id, ARRAY[]::text[] FROM ({_NUMBERED}) AS numbered WHERE is_state ORDER BY n
    """,
    f"""
    INSERT INTO state_stategroup (id, room_id, prev_group, chain, hops, keys, rows_to_read)
    SELECT state_group, room_id,
        CASE WHEN change = head AND head > 0 THEN chain WHEN change > 0 THEN state_group - 2 END,
        chain, 0, least(change + 1, %(users)s), change - head + 1 + least(head, %(users)s)
    FROM ({_NUMBERED}) AS numbered WHERE is_state ORDER BY n
    """,
    f"""
    INSERT INTO state_stategroup (id, room_id, prev_group, chain, hops, keys, rows_to_read)
    SELECT chain, room_id, NULL, chain, 0, least(head, %(users)s), least(head, %(users)s)
    FROM ({_NUMBERED}) AS numbered WHERE is_state AND change = head AND head > 0 ORDER BY n
    """,
    f"""
    INSERT INTO state_stategroupdelta (chain, state_group, type, state_key, event_id)
    SELECT chain, state_group, 'm.room.member', user_id, event_id FROM ({_NUMBERED}) AS numbered WHERE is_state ORDER BY n
    """,
    f"""
    INSERT INTO state_stategroupdelta (chain, state_group, type, state_key, event_id)
    SELECT chain, chain, 'm.room.member', {_USER_ID}, {_EVENT_ID.format(place=_PLACE_OF_CHANGE)}
    FROM (
        SELECT chain, room_no, older AS change FROM ({_NUMBERED}) AS numbered
        CROSS JOIN generate_series(greatest(head - %(users)s, 0), head - 1) AS older
        WHERE is_state AND change = head AND head > 0
    ) AS copied
    """,
    f"""
    INSERT INTO events_currentstate (room_id, type, state_key, event_id, membership)
    SELECT room_id, 'm.room.member', user_id, event_id, 'join'
    FROM ({_NUMBERED}) AS numbered WHERE is_state AND n > %(events)s - %(users)s * {STATE_EVERY} * %(rooms)s
    ON CONFLICT DO NOTHING
    """,
    f"""
    INSERT INTO events_forwardextremity (event_id, room_id)
    SELECT event_id, room_id FROM ({_NUMBERED}) AS numbered WHERE n > %(events)s - %(rooms)s
    """,
    f"INSERT INTO events_room (room_id, room_version) SELECT room_id, '10' FROM ({_NUMBERED}) AS numbered WHERE depth = 1",
    f"""
    INSERT INTO events_eventvisibility (room_id, kind, first)
    SELECT room_id, 'shared', place FROM ({_NUMBERED}) AS numbered WHERE depth = 1
    """,
    f"""
    INSERT INTO streams_streamposition (stream, instance_name, position, last_write_position, state)
    VALUES ('events', '{_WRITER}', %(first)s + %(events)s, %(first)s + %(events)s, 'retired')
    """,
    "SELECT setval('events_event_stream_seq', %(first)s + %(events)s)",
    "SELECT setval(pg_get_serial_sequence('state_stategroup', 'id'), %(group)s + 2 * %(changes)s * %(rooms)s)",
)


def fill_room(events: int, room: str = ROOM) -> str:
    """Store a room of so many events, each of whose memberships is another user's; returns its ID."""
    fill_rooms(Shape(events, first_room=room))
    return room


def fill_rooms(shape: Shape) -> None:
    """Store the rooms. Tables are vacuumed and analysed afterwards."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_sequence_last_value('events_event_stream_seq'), coalesce(max(id), 0) FROM state_stategroup"
        )
        first, group = cursor.fetchone()
        for statement in _STATEMENTS:
            cursor.execute(statement, {**shape.names(), "first": first, "group": group})
        for table in _TABLES:
            cursor.execute(f"VACUUM ANALYZE {table}")
