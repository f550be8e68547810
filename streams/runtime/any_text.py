"""Lets addresses carry names of any characters: Django's ``path`` parameters match no line break."""

from __future__ import annotations

from collections.abc import Iterable

from django.urls import URLPattern, path, register_converter
from django.urls.converters import StringConverter


class _AnyText(StringConverter):
    regex = "(?s:.+)"


register_converter(_AnyText, "any_text")


def of_any_text(patterns: Iterable[URLPattern]) -> list[URLPattern]:
    """Returns the patterns with parameters that match any text, also line breaks, in place of ``path`` parameters."""
    return [
        path(str(found.pattern).replace("<path:", "<any_text:"), found.callback, found.default_args, found.name)
        for found in patterns
    ]
