"""Serves the actions of operators (``replsite.operator_actions``) in the admin, and the list of a reader's dead letters.

Each action has a page that describes its effects. A POST carries the action out, for staff with the permission, and
records it in the admin's log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.views.decorators.http import require_safe

from replsite.http.database_down import away_response
from replsite.operator_actions import ACTIONS, FACTS_SHOWN, Action, Asked, cursors_of, perform, retries
from streams.db import driver
from streams.follow import parked_facts
from streams.follow.handlers import load_handlers
from streams.runtime.text import safe_text

#: The most dead letters that one request chooses.
_MOST_CHOSEN = 500


@require_safe
def _parked_page(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm("streams.view_parkedfact"):
        raise PermissionDenied("streams.view_parkedfact")
    asked = _asked(request)
    load_handlers()
    found = list(parked_facts(asked.name)[: FACTS_SHOWN + 1])
    cursors = cursors_of(asked.name)
    if not (found or cursors):
        raise Http404("There is no such reader.")
    sentences, is_retrying = retries(cursors)
    context = {
        **admin.site.each_context(request),
        "title": f"Dead letters of {safe_text(asked.name)}",
        "reader": asked.name,
        "retries": sentences,
        "is_retrying": is_retrying,
        "facts": [
            {
                "stream": fact.stream, "token": fact.token, "writer": safe_text(fact.instance_name), "attempts": fact.attempts,
                "parked_at": fact.parked_at, "tried_at": fact.tried_at, "error": safe_text(fact.error, None),
                "traceback": safe_text(fact.traceback, None, keep="\n\t"),
            }
            for fact in found[:FACTS_SHOWN]
        ],
        "most": FACTS_SHOWN,
        "has_more": len(found) > FACTS_SHOWN,
    }  # fmt: skip
    return TemplateResponse(request, "dashboard/parked.html", context)


def _asked(request: HttpRequest) -> Asked:
    name, stream, token = (request.GET.get(key, "") for key in ("name", "stream", "token"))
    if not name or "\x00" in f"{name}{stream}":
        raise Http404("The address must name whom it is about.")
    since = request.GET.get("since", "")[:100]
    chosen: dict[str, list[int]] = {}
    facts = request.GET.getlist("fact")[:_MOST_CHOSEN]
    if "chosen" in request.GET and not facts:  # without names of facts an action is about all of them
        raise Http404("No dead letter is chosen: go back, and choose some.")
    for fact in facts:
        of, _, number = fact.rpartition(" ")
        if not of or "\x00" in of:
            raise Http404("A chosen fact is a stream and a token.")
        chosen.setdefault(of, []).append(_number(number))
    return Asked(name, request.user.get_username(), stream or None, _number(token) if token else None, chosen, since)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 2**63):
        raise Http404("The token must be a number.")
    return int(text)


def _view(action: Action) -> Callable[..., HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(action.permission):
            raise PermissionDenied(action.permission)
        try:
            # A POST computes the plan again: the action is based on the present rows, not on those that the page showed.
            asked = _asked(request)
            plan = action.plan(asked)
        except driver.connection_lost as error:
            return away_response(request, error)
        back = f"{reverse('parked-facts')}?{urlencode({'name': asked.name})}" if action.is_of_parked else ""
        if request.method == "POST" and plan.carry_out is not None:
            done, is_done = perform(request.user.pk, plan, plan.carry_out)
            (messages.success if is_done else messages.error)(request, done)
            return HttpResponseRedirect(back or reverse("live"))
        # Only texts go into the context, not the plan: a template would call carry_out.
        sentences = [safe_text(sentence, None) for sentence in plan.sentences]
        texts: dict[str, Any] = {"title": plan.title, "sentences": sentences, "button": plan.button, "back": back}
        texts |= {"asks": plan.asks, "name": asked.name}
        context = {**admin.site.each_context(request), **texts}
        return TemplateResponse(request, "dashboard/action.html", context)

    return admin.site.admin_view(view)


def action_urls() -> list[URLPattern]:
    return [
        path("actions/parked/", admin.site.admin_view(_parked_page), name="parked-facts"),
        *(path(f"actions/{action.path}/", _view(action), name=name) for name, action in ACTIONS.items()),
    ]
