"""Sample facts for the load generator (``manage.py append``), the demo and the benchmarks.

A stream whose facts have one row each needs only the ``sample`` that is given to ``streams.registry.bind``. Other
streams register a generator of their own: ``register("events", "events.load_generator.EventLoad")``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from django.utils.module_loading import import_string

from streams import registry
from streams.errors import UnknownStream
from streams.stream_object import Stream


class LoadGenerator(Protocol):
    """A source of sample facts for one thread of the load generator."""

    def append(self, count: int) -> list[int]:
        """Appends ``count`` facts in one transaction, each under its own ID. Returns the IDs."""
        ...


class SampleLoad:
    """A generator of facts with one row each. The stream's ``sample(number, thread)`` supplies the values."""

    def __init__(self, stream: Stream, thread: int) -> None:
        self._stream, self._thread, self._number = stream, thread, 0

    def append(self, count: int) -> list[int]:
        """Appends ``count`` sample facts in one transaction. Returns the IDs.

        Raises ``UnknownStream`` if the stream has no sample.
        """
        sample, model = self._stream.sample, self._stream.models[0]
        if sample is None:
            raise UnknownStream(
                f"Stream {self._stream.name!r} has no sample facts, so no load can be made for it. "
                f"Give its declaration sample=…, or register a generator with streams.load_generator."
            )
        facts = [model(**sample(self._number + n, self._thread)) for n in range(count)]
        self._number += count
        return self._stream.append(*facts)


Factory = Callable[[Stream, int], LoadGenerator]
_factories: dict[str, Factory | str] = {}


def register(stream_name: str, factory: Factory | str) -> None:
    """Registers ``factory(stream, thread)``, which makes the generators for that stream.

    If ``factory`` is a text, it is the dotted name of such a function. The function is imported when the first
    generator is made.
    """
    _factories[stream_name] = factory


def generator(stream_name: str, thread: int) -> LoadGenerator:
    """Returns a new generator for one thread. Raises ``UnknownStream``."""
    stream, factory = registry.get(stream_name), _factories.get(stream_name, SampleLoad)
    if isinstance(factory, str):
        factory = cast(Factory, import_string(factory))
    return factory(stream, thread)
