"""Appends to ``caches`` in a process of ``tests.support.asked_process``, when it is asked to.

``append NAME`` answers with the ID of the fact, once it is committed, or with ``error`` and the error's text.
"""

from __future__ import annotations

import sys

__all__ = ["MODULE", "main"]

MODULE = "tests.support.appending"


def _append(name: str) -> str:
    from django.db import Error, connection

    from streams import registry
    from streams.catalog.models import CacheInvalidation
    from streams.errors import StreamError

    try:
        (token,) = registry.get("caches").append(CacheInvalidation(cache_name=name, keys=["k"]))
    except (Error, StreamError) as error:
        connection.close_if_unusable_or_obsolete()
        return " ".join(f"error {type(error).__name__}: {error}".split())
    return str(token)


def main() -> None:
    """Answers lines."""
    for line in sys.stdin:
        _, name = line.split()
        sys.stdout.write(f"{_append(name)}\n")
        sys.stdout.flush()
