"""Reads ``REPLSITE_EXPECTED_WRITERS``, the writers that each stream must have (pure).

``{"events": ["web-{n}", "importer"], "caches": {"web-1": 60}}`` gives names or patterns for each stream. An object, as
for ``caches``, also gives for each name the least number of facts per hour; null means that there is no minimum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streams.core.names import check_name


def expected_writers(given: Any) -> dict[str, dict[str, float | None]]:
    """Returns ``{stream: {name or pattern: least facts per hour, or None}}``.

    The result is empty for an invalid setting, which the system checks report.
    """
    if next(wrong_expectations(given), None) is not None:
        return {}
    return {
        stream: dict(names) if isinstance(names, Mapping) else dict.fromkeys(names) for stream, names in given.items()
    }


def wrong_expectations(given: Any) -> Iterator[str]:
    """Yields a sentence for each mistake in the setting."""
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
                yield f"REPLSITE_EXPECTED_WRITERS expects {least!r} facts an hour of {writer!r}: write a number above 0, or null."
