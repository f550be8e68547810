"""The registry of streams: declarations and the models bound to them.

The registry is filled while Django imports the apps' models, and read-only afterwards. A process has one registry
(``streams.core.lookup``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from streams.conf import stream_settings
from streams.core import lookup
from streams.core.bound import Sample
from streams.core.declaration import StreamDeclaration
from streams.core.lookup import names
from streams.stream_object import Stream

if TYPE_CHECKING:
    from django.db.models import Model

__all__ = ["Sample", "all_streams", "announced", "bind", "find", "get", "names", "stream_of"]

M = TypeVar("M", bound="type[Model]")


def bind(declaration: StreamDeclaration, *, sample: Sample | None = None) -> Callable[[M], M]:
    """Class decorator that binds a model to a declared stream: the rows of the model are facts of the stream.

    A stream that is a union of tables is bound once per model. ``sample`` supplies the facts of ``manage.py append``.

    A second declaration of the same name binds no model, and the system check ``streams.E019`` reports this
    declaration.
    """

    def register(model: M) -> M:
        known = lookup.find(declaration.name)
        if known is not None and known.declaration != declaration:
            lookup.clashes.append((declaration.name, model._meta.label))
            return model
        stream = lookup.add(declaration, model._meta.db_table, Stream)
        stream.add_model(model, sample)
        return model

    return register


def get(name: str) -> Stream:
    """Returns the stream of that name. Raises ``UnknownStream`` with the names that exist."""
    return cast(Stream, lookup.get(name))


def find(name: str) -> Stream | None:
    """Returns the stream of that name, or None if no such stream is declared in this program."""
    return cast("Stream | None", lookup.find(name))


def stream_of(model: type[Model] | Model) -> Stream:
    """Returns the stream whose facts are the rows of the model.

    If several streams share the table, returns the stream that was bound first.
    """
    return cast(Stream, lookup.stream_of(model))


def all_streams() -> list[Stream]:
    """Returns all streams in the order in which they are announced."""
    return cast("list[Stream]", lookup.all_streams())


def announced() -> list[str]:
    """Returns the names of the streams that servers announce.

    ``federation`` is left out if no other process sends federation traffic for this site.
    """
    return [name for name in names() if name != "federation" or not stream_settings().send_federation]
