"""The name under which this process appends. Any number of processes may have the same name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streams.conf import on_this_host, stream_settings
from streams.core.bound import BoundStream
from streams.core.names import check_name, is_name_of_writer, name_without_number
from streams.errors import WriterNotAllowed

_instance: str | None = None


def use_instance(name: str) -> None:
    """Sets the name under which this process appends, instead of ``REPLSITE_WRITER``.

    Raises ``BadInstanceName``, a ``ValueError``, for a text that cannot be a name.
    """
    global _instance  # noqa: PLW0603 - one name for the process
    check_name(name)
    _instance = on_this_host(name)


@contextmanager
def written_by(name: str) -> Iterator[None]:
    """Sets the name for a block or, as a decorator, for a function, such as a command that another program calls."""
    global _instance  # noqa: PLW0603 - one name for the process
    before = _instance
    use_instance(name)
    try:
        yield
    finally:
        _instance = before


def writer_name() -> str:
    """Returns the name under which this process appends. ``{n}`` in a name, which older versions numbered, is left out."""
    return name_without_number(_instance or stream_settings().writer)


def name_for(stream: BoundStream) -> str:
    """Returns ``writer_name()``. Raises ``WriterNotAllowed`` if this name may not write the stream."""
    name = writer_name()
    allowed = stream_settings().writers.get(stream.name)
    if allowed is not None and not any(is_name_of_writer(name, pattern) for pattern in allowed):
        raise WriterNotAllowed(
            f"Instance {name!r} may not write stream {stream.name!r}: REPLSITE_WRITERS lets only {', '.join(allowed)} write "
            f"it. Add the name there, or append in one of those processes."
        )
    return name
