"""Events as they are given out: one form and one query for every reader (timelines, sync, federation).

A reader's own query finds the rows; ``SERVED`` and ``SERVED_JSON`` put what is given out beside them, so that a page is
one query, redactions included. Nothing here asks who may see an event: that is the query's part
(``events.visibility.predicate_sql``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from django.db import connections

from events.arguments import can_be_stored
from events.format.client_format import StoredForm, client_json, pruned_json
from events.format.strict_json import decode_stored
from events.reading.served_sql import SERVED, SERVED_JSON, SERVED_TYPES

__all__ = ["SERVED", "SERVED_JSON", "ServedEvent", "load_events", "served"]

_COLUMNS = len(SERVED_TYPES)

_BY_ID = f"SELECT {SERVED} FROM events_event e {SERVED_JSON} WHERE e.event_id = ANY(%s)"
_EVENTS_PER_QUERY = 1_000


class ServedEvent(msgspec.Struct, frozen=True):
    """An event on its way out (a frozen struct: a page makes a hundred, and dataclasses take four times as long).

    ``json`` is what is stored, byte for byte. ``writer`` and ``stream_ordering`` are its position, (``topological_ordering``,
    ``stream_ordering``) its place in the room: whoever gets events out of order can put them in order. ``redacted_by``: a
    redaction applies, everybody gets the pruned form. ``pruned``: this reader gets the pruned form, because the sender is
    erased or, for servers, because nobody of that server was there.
    """

    event_id: str
    room_id: str
    room_version: str
    type: str
    state_key: str | None
    sender: str
    stream_ordering: int
    topological_ordering: int
    writer: str
    origin_server_ts: int
    redacts: str | None
    json: bytes
    redacted_by: str | None = None
    redaction: StoredForm | None = None
    """The redaction that applies, if it is here."""
    pruned: bool = False

    @property
    def token(self) -> str:
        """The event's place in its room: a page begins beyond it, ``before`` as well as ``after``."""
        return f"t{self.topological_ordering}-{self.stream_ordering}"

    def client_json(self) -> bytes:
        """For a client: UTF-8 JSON, redaction applied, with ``unsigned.redacted_because`` and ``redacted_by``."""
        pruned = self.pruned or self.redacted_by is not None
        form = StoredForm(
            self.event_id,
            self.room_id,
            self.room_version,
            self.json,
            self.redacts,
            pruned,
            self.redacted_by,
            self.redaction,
        )
        return client_json(form)

    def client_event(self) -> dict[str, Any]:
        """The same as a dictionary."""
        event: dict[str, Any] = decode_stored(self.client_json())
        return event

    def federation_json(self) -> bytes:
        """For a server: the exact bytes, or the pruned form in canonical JSON; both verify."""
        if self.pruned or self.redacted_by is not None:
            return pruned_json(self.json, self.room_version)
        return self.json

    def as_pruned(self) -> ServedEvent:
        """The same for a reader who gets the pruned form only."""
        return msgspec.structs.replace(self, pruned=True)


def served(row: Sequence[Any], *, pruned: bool = False) -> ServedEvent:
    """The event of a row that begins with the columns ``SERVED``."""
    (event_id, room_id, version, event_type, state_key, sender, stream, topological, writer, ts, redacts, json,
     redacted_by, because, because_redacts, because_pruned) = row[:_COLUMNS]  # fmt: skip
    redaction = None
    if because is not None:
        redaction = StoredForm(redacted_by, room_id, version, because.encode(), because_redacts, bool(because_pruned))
    return ServedEvent(
        event_id, room_id, version, event_type, state_key, sender, stream, topological, writer, ts, redacts, json.encode(),
        redacted_by, redaction, pruned,
    )  # fmt: skip


def load_events(event_ids: Collection[str], using: str = "default") -> dict[str, ServedEvent]:
    """The stored events of these IDs, whoever may see them; those that are not here are left out."""
    wanted = [event_id for event_id in dict.fromkeys(event_ids) if can_be_stored(event_id)]
    found: dict[str, ServedEvent] = {}
    with connections[using].cursor() as cursor:
        for start in range(0, len(wanted), _EVENTS_PER_QUERY):
            cursor.execute(_BY_ID, [wanted[start : start + _EVENTS_PER_QUERY]])
            found.update((row[0], served(row)) for row in cursor)
    return found
