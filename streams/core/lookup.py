"""The streams of this program by name, for the engine (pure). Filled by ``streams.registry.bind``, read-only afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.core.bound import BoundStream
from streams.core.declaration import StreamDeclaration
from streams.errors import UnknownStream, UnknownTable

#: Order in which Synapse 1.43 announces its streams. Other streams follow in the order in which they were bound.
_WIRE_ORDER = (
    "events", "backfill", "presence", "presence_federation", "typing", "receipts", "push_rules", "pushers", "caches",
    "device_lists", "to_device", "federation", "tag_account_data", "account_data", "groups", "user_signature",
)  # fmt: skip

#: (name of a stream, label of the class that declared it once more). The system checks report them.
clashes: list[tuple[str, str]] = []
_streams: dict[str, BoundStream] = {}
_by_table: dict[str, BoundStream] = {}


def add(declaration: StreamDeclaration, table: str, make: Callable[[StreamDeclaration], BoundStream]) -> BoundStream:
    """Returns the stream of that declaration, and registers the table for it. Makes the stream if it does not exist yet.

    If several streams share a table, it stays registered for the stream that was added first.
    """
    stream = _streams.get(declaration.name)
    if stream is None:
        stream = make(declaration)
        stream.sharing = [other for other in _streams.values() if other.declaration.sequence == declaration.sequence]
        for other in stream.sharing:
            other.sharing.append(stream)
        _streams[declaration.name] = stream
    _by_table.setdefault(table, stream)
    return stream


def get(name: str) -> BoundStream:
    """Returns the stream of that name. Raises ``UnknownStream``, which lists the names that exist."""
    try:
        return _streams[name]
    except KeyError:
        raise UnknownStream(f"There is no stream {name!r}. Known streams: {', '.join(names())}.") from None


def find(name: str) -> BoundStream | None:
    """Returns the stream of that name, or None if this program has no such stream."""
    return _streams.get(name)


def stream_of(model: Any) -> BoundStream:
    """Returns the stream whose facts are the rows of this model.

    If several streams share the table, returns the stream that was added first.

    Raises ``UnknownTable`` if no stream is bound to the table, and for what is no model.
    """
    try:
        return _by_table[model._meta.db_table]
    except KeyError:
        raise UnknownTable(
            f"{model._meta.label} holds no facts: no stream is bound to it. Write @stream('name') above a class of streams.Fact."
        ) from None
    except AttributeError:
        raise UnknownTable(f"{model!r} is no model: give the class of a stream, such as Order.") from None


def all_streams() -> list[BoundStream]:
    rank = {name: number for number, name in enumerate(_WIRE_ORDER)}
    return sorted(_streams.values(), key=lambda stream: rank.get(stream.name, len(rank)))


def names() -> list[str]:
    return [stream.name for stream in all_streams()]
