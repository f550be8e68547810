"""Which streams exist: declarations and the models bound to them.

Filled while Django imports the apps' models; read-only afterwards. One registry for the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from streams.conf import stream_settings
from streams.core.declaration import StreamDeclaration
from streams.core.invalidation import KeyRule
from streams.errors import UnknownStream, UnknownTable

if TYPE_CHECKING:
    from django.db.models import Model

    from streams.stream import Stream

__all__ = ["Sample", "all_streams", "announced", "bind", "find", "get", "names", "sharing", "stream_of"]

M = TypeVar("M", bound="type[Model]")

#: ``sample(number, thread) -> field values`` of one made-up fact, for the load generator.
Sample = Callable[[int, int], Mapping[str, Any]]

#: Order in which streams are announced, as by Synapse 1.43; streams that are not named here follow by age.
_WIRE_ORDER = (
    "events", "backfill", "presence", "presence_federation", "typing", "receipts", "push_rules", "pushers", "caches",
    "device_lists", "to_device", "federation", "tag_account_data", "account_data", "groups", "user_signature",
)  # fmt: skip

_streams: dict[str, Stream] = {}
_by_table: dict[str, Stream] = {}
_by_sequence: dict[str, list[Stream]] = {}


def bind(
    declaration: StreamDeclaration, *, sample: Sample | None = None, caches: Mapping[str, KeyRule] | None = None
) -> Callable[[M], M]:
    """Class decorator: this model holds facts of the declared stream.

    A stream that is a union of tables is bound once per model. ``sample`` lets ``manage.py append`` make facts.
    ``caches`` says which cached values a row makes old: the cache's name -> the columns that are its key, or a function from
    the row to keys (``streams.core.invalidation``).
    """

    def register(model: M) -> M:
        from streams.stream import Stream  # noqa: PLC0415 - the stream module needs Django's apps to be loading

        stream = _streams.get(declaration.name)
        if stream is None:
            stream = _streams[declaration.name] = Stream(declaration)
            _by_sequence.setdefault(declaration.sequence, []).append(stream)
        stream.add_model(model, sample)
        if caches:
            stream.add_caches(model._meta.db_table, caches)
        _by_table.setdefault(model._meta.db_table, stream)
        return model

    return register


def get(name: str) -> Stream:
    """The stream of that name; raises ``UnknownStream`` with the names that exist."""
    try:
        return _streams[name]
    except KeyError:
        raise UnknownStream(f"There is no stream {name!r}. Known streams: {', '.join(names())}.") from None


def find(name: str) -> Stream | None:
    """The stream of that name, None when this program does not know it."""
    return _streams.get(name)


def stream_of(model: type[Model] | Model) -> Stream:
    """The stream that a model's rows are facts of; for a table shared by several streams the first one bound."""
    try:
        return _by_table[model._meta.db_table]
    except KeyError:
        raise UnknownTable(
            f"{model._meta.label} holds no facts: no stream is bound to it. Decorate the model with streams.registry.bind."
        ) from None


def all_streams() -> list[Stream]:
    """All streams in the order in which they are announced."""
    rank = {name: number for number, name in enumerate(_WIRE_ORDER)}
    return sorted(_streams.values(), key=lambda stream: rank.get(stream.name, len(rank)))


def announced() -> list[str]:
    """The names of the streams that servers tell of: without ``federation`` where nobody else is to send for us."""
    return [name for name in names() if name != "federation" or not stream_settings().send_federation]


def sharing(stream: Stream) -> list[Stream]:
    """The other streams that take their IDs from the stream's sequence: their positions move when it is written."""
    return [other for other in _by_sequence.get(stream.declaration.sequence, ()) if other is not stream]


def names() -> list[str]:
    """The names of all streams, in the same order."""
    return [stream.name for stream in all_streams()]
