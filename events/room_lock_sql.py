"""Statements that lock a room's row (pure).

They are used by ``events.room_lock``, by other code that locks a room, and by tasks of Spark.
"""

from __future__ import annotations

#: Comes first in the lock's message. In a transaction at another level that has read something, the server refuses it.
READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
#: Makes PostgreSQL use indexes for the rest of the transaction. It plans a prepared statement once, until the next ANALYZE. A
#: plan that was made for a small table would read the table whole each time, while the table grows.
BY_INDEX = "SET LOCAL enable_seqscan = off"
#: Parameter: the room ID.
LOCK_ROOM = f"{READ_COMMITTED}; SELECT FROM events_room WHERE room_id = %s FOR UPDATE"
#: Locks the room, and has all processes drop what they cached of its content. Parameter: the room ID.
CHANGE_ROOM = f"{READ_COMMITTED}; UPDATE events_room SET content_generation = content_generation + 1 WHERE room_id = %s"
