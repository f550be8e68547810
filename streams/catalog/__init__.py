"""The plain homeserver streams, declared (pure)."""

from streams.catalog.caches import CACHES
from streams.declaration import StreamDeclaration

__all__ = ["CACHES", "declarations"]


def declarations() -> tuple[StreamDeclaration, ...]:
    """All streams of this room, in the order of the protocol's stream table."""
    return (CACHES,)
