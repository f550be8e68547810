"""Answers requests that are refused (403) or find no page (404) with the site's own error pages.

The page for a refused request names the missing permission.
"""

from __future__ import annotations

import re

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string

from streams.runtime.text import safe_text

_PERMISSION = re.compile(r"[a-z_]+\.[a-z_]+")


def handler403(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answers a request that is refused, with the name of the permission that the user lacks, if it is known."""
    permission = _missing_permission(request, exception)
    sentence = "You may not do that, or see this."
    return _answer(request, 403, {"title": "Not allowed", "sentence": sentence, "permission": permission})


def handler404(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answers a request for a page or object that does not exist, with the reason that the view gave."""
    # The error of an address that no pattern matches has a dict, and not a sentence.
    reason = exception.args[0] if exception is not None and exception.args else ""
    sentence = safe_text(reason) if isinstance(reason, str) and reason else "There is no such page."
    return _answer(request, 404, {"title": "Not found", "sentence": sentence, "permission": ""})


def _missing_permission(request: HttpRequest, exception: Exception | None) -> str:
    if exception is not None and _PERMISSION.fullmatch(named := str(exception)):
        return named
    # Django marks the views of each table's admin with it. The default site does not tell: a project may have another.
    of_table = getattr(request.resolver_match and request.resolver_match.func, "model_admin", None)
    return f"{of_table.opts.app_label}.view_{of_table.opts.model_name}" if of_table else ""


def _answer(request: HttpRequest, status: int, context: dict[str, str]) -> HttpResponse:
    if "text/html" in request.headers.get("Accept", ""):
        return HttpResponse(render_to_string("refused.html", context), status=status)
    named = {"permission": context["permission"]} if context["permission"] else {}
    return JsonResponse({"error": context["sentence"], **named}, status=status)
