"""Writers that have to be there: what ``REPLSITE_EXPECTED_WRITERS`` says, read in one place (pure).

``{"events": ["web-{n}", "importer"], "caches": {"web-1": 60}}``: for each stream names or patterns, or those with the least
number of facts an hour (null: any number).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from streams.core.names import check_name

__all__ = ["Expected", "expected_writers", "wrong_expectations"]


@dataclass(frozen=True, slots=True)
class Expected:
    """A name or pattern that some living writer of the stream must have, and how much it writes at least."""

    stream: str
    writer: str
    least_per_hour: float | None = None


def expected_writers(given: Any) -> dict[str, list[Expected]]:
    """What is expected of each stream; of a setting that makes no sense, nothing (the system checks tell of it)."""
    if next(wrong_expectations(given), None) is not None:
        return {}
    return {
        stream: [
            Expected(stream, writer, names[writer] if isinstance(names, Mapping) else None)
            for writer in dict.fromkeys(names)
        ]
        for stream, names in given.items()
    }


def wrong_expectations(given: Any) -> Iterator[str]:
    """What is wrong with the setting, in sentences."""
    form = 'write {"stream": ["name", "pattern-{n}"]} or {"stream": {"name": least facts an hour, or null}}.'
    if not isinstance(given, Mapping):
        yield f"REPLSITE_EXPECTED_WRITERS is no JSON object: {form}"
        return
    for stream, names in given.items():
        if not isinstance(names, Mapping | list | tuple):
            yield f"REPLSITE_EXPECTED_WRITERS of {stream!r} is {names!r}: {form}"
            continue
        for writer in names:
            if not isinstance(writer, str):
                yield f"REPLSITE_EXPECTED_WRITERS of {stream!r} names {writer!r}: {form}"
                continue
            try:
                check_name(writer)
            except ValueError as error:
                yield f"REPLSITE_EXPECTED_WRITERS of {stream!r}: {error}"
            least = names[writer] if isinstance(names, Mapping) else None
            if least is not None and (isinstance(least, bool) or not isinstance(least, int | float) or not least > 0):
                yield f"REPLSITE_EXPECTED_WRITERS wants {least!r} facts an hour of {writer!r}: write a number above 0, or null."
