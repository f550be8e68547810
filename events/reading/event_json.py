"""Loads stored events in the form that timelines and sync give out.

Timelines and sync each find the rows by a query of their own. ``SERVED`` and ``SERVED_JSON`` add the
columns that are given out, so a page needs a single query, redactions included. Nothing here checks who may see an
event. The query that finds the rows must check this (``events.visibility.predicate_sql``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from django.db import connections

from events.arguments import can_be_stored
from events.format.client_format import StoredForm, client_json, covered_json, pruned_json
from events.format.strict_json import decode_stored
from events.reading.served_sql import SERVED, SERVED_JSON, SERVED_TYPES

__all__ = ["SERVED", "SERVED_JSON", "ServedEvent", "load_events", "served"]

_COLUMNS = len(SERVED_TYPES)

_BY_ID = f"SELECT {SERVED} FROM events_event e {SERVED_JSON} WHERE e.event_id = ANY(%s)"
_EVENTS_PER_QUERY = 1_000


# A struct of msgspec, because a page builds a hundred of them and a dataclass takes four times as long.
class ServedEvent(msgspec.Struct, frozen=True):
    """A stored event with the values that clients and servers get.

    ``json`` has the stored bytes. ``writer`` and ``stream_ordering`` are the event's position in the stream.
    (``topological_ordering``, ``stream_ordering``) is its place in the room, by which clients can sort.

    If ``redacted_by`` is set, a redaction applies, and every user and server gets the pruned form. If ``pruned`` is
    true, the user of the query gets the pruned form, because the sender is erased.
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
    """The redaction that applies, if it is stored here."""
    pruned: bool = False

    @property
    def token(self) -> str:
        """The event's place in its room. A page ``before`` or ``after`` this token begins beyond the event."""
        return f"t{self.topological_ordering}-{self.stream_ordering}"

    def client_json(self) -> bytes:
        """Returns the event for clients as UTF-8 JSON.

        If a redaction applies, the event is pruned, and ``unsigned`` has ``redacted_by`` and ``redacted_because``. If
        the stored JSON is damaged, the event has what its columns hold, and no content.
        """
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
        found = client_json(form)
        return msgspec.json.encode(self._columns()) if found is None else found

    def client_event(self) -> dict[str, Any]:
        return decode_stored(self.client_json()) or self._columns()

    def _columns(self) -> dict[str, Any]:
        event: dict[str, Any] = {"content": {}, "event_id": self.event_id, "origin_server_ts": self.origin_server_ts}
        event |= {"room_id": self.room_id, "sender": self.sender, "type": self.type, "unsigned": {}}
        return event if self.state_key is None else event | {"state_key": self.state_key}

    @property
    def is_damaged(self) -> bool:
        """True if the stored JSON cannot be read. Then there is nothing to give to other servers."""
        return decode_stored(self.json) is None

    def federation_json(self) -> bytes:
        """Returns the event for a server: the exact bytes, or the pruned form in canonical JSON.

        Signatures of both verify.

        What neither a hash nor a signature covers is left out (``client_format.covered_json``): a server on the way may
        have written it, and not the sender's. The exact bytes then become canonical JSON.
        """
        if self.pruned or self.redacted_by is not None:
            return pruned_json(self.json, self.room_version)
        return covered_json(self.json)


def served(row: Sequence[Any], *, pruned: bool = False) -> ServedEvent:
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
    """Returns the stored events by ID, without any check of visibility. IDs that are not stored are left out."""
    wanted = [event_id for event_id in dict.fromkeys(event_ids) if can_be_stored(event_id)]
    found: dict[str, ServedEvent] = {}
    with connections[using].cursor() as cursor:
        for start in range(0, len(wanted), _EVENTS_PER_QUERY):
            cursor.execute(_BY_ID, [wanted[start : start + _EVENTS_PER_QUERY]])
            found.update((row[0], served(row)) for row in cursor)
    return found
