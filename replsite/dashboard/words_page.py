"""Serves the page that explains each status word. Every status word of the live page links to its explanation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from replsite.status.words import MEANINGS, anchor


def word_addresses() -> dict[tuple[str, str], str]:
    """Returns for each (kind, word) the address that explains it. The kind is writer, reader, job or site."""
    page = reverse("status-words")
    return {(kind, str(word)): f"{page}#{anchor(kind, word)}" for _, kind, words in MEANINGS for word in words}


@require_safe
def _words_page(request: HttpRequest) -> HttpResponse:
    tables = [
        (title, [(anchor(kind, word), str(word), list(_parts(word.rule)), word.severity) for word in words])
        for title, kind, words in MEANINGS
    ]
    context: dict[str, Any] = {**admin.site.each_context(request), "title": "Status words", "tables": tables}
    return TemplateResponse(request, "dashboard/words.html", context)


words_page = admin.site.admin_view(_words_page)


def _parts(rule: str) -> Iterable[tuple[bool, str]]:
    """Yields (true if the part is code, text) for each part of a rule. Backticks enclose code."""
    for number, part in enumerate(rule.split("`")):
        yield number % 2 == 1, part
