"""Converts events to batches of the frame ``events``, and back. Needs no Django.

``event_arrays`` makes columns of ``ParsedEvent`` objects. ``parsed_events`` makes equal objects from these columns, but
without the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from events.format.parsing import ParsedEvent
from pipeline.frames.schemas import EVENTS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["event_arrays", "parsed_events"]

_NOTHING: Mapping[str, Any] = {}
_FIELDS = tuple(field.name for field in msgspec.structs.fields(ParsedEvent))
#: Columns that hold a field of the event unchanged.
_PLAIN = tuple(name for name in EVENTS.names if name in _FIELDS and name != "content")
_plain_values = attrgetter(*_PLAIN)


def event_arrays(events: Sequence[ParsedEvent]) -> dict[str, pa.Array]:
    """Returns the columns of ``EVENTS`` for some events: column name -> array.

    The columns for the events' place in the sources (``source``, ``line``) are missing.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only

    schema = EVENTS.arrow()
    columns = zip(*map(_plain_values, events), strict=True) if events else repeat(())
    arrays = {name: pa.array(values, schema.field(name).type) for name, values in zip(_PLAIN, columns, strict=False)}
    # As JSON: integers of a content may have more than 64 bits. Characters that UTF-8 lacks are escaped.
    contents = [json.dumps(event.content) if event.content else None for event in events]
    return arrays | {"content": pa.array(contents, pa.string())}


def parsed_events(batch: pa.RecordBatch, stream_ordering: int | None = None) -> list[ParsedEvent]:
    """Returns the events of a batch, without their JSON. All events of the batch must be of the same room.

    If ``stream_ordering`` is given, all events get this stream ordering instead of their own.
    """
    if not batch.num_rows:
        return []
    columns: dict[str, Iterable[Any]] = {
        name: batch.column(name).to_pylist() for name in _FIELDS if name not in ("json", "room_id", "room_version")
    }
    for name in ("room_id", "room_version"):
        columns[name] = repeat(batch.column(name)[0].as_py())
    for name in ("prev_event_ids", "auth_event_ids"):
        columns[name] = map(tuple, columns[name])
    columns["content"] = [_NOTHING if text is None else json.loads(text) for text in columns["content"]]
    columns["json"] = repeat(b"")
    if stream_ordering is not None:
        columns["stream_ordering"] = repeat(stream_ordering)
    return [*map(ParsedEvent, *(columns[name] for name in _FIELDS))]
