"""Serves the actions of operators in the admin: disconnect or forget a reader, retire a writer, end its open transactions.

Each action has a page that says what would happen. A POST carries the action out, for staff with the permission, and
records it in the admin's log. To disconnect a reader, the action marks the reader's row, and the server of the reader
ends the connection. The other actions call the same functions as ``manage.py streams retire``, ``abort`` and ``forget``
(``streams.writing.terminate``, ``streams.follow``). No view waits until another process has reacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from replsite.http.database_down import away_response
from replsite.humanize import counted
from streams.conf import stream_settings
from streams.db import driver
from streams.errors import StreamError, UnknownWriter
from streams.follow import forget_reader
from streams.follow.lease import reader_row_key
from streams.models import Reader, StoredCursor, StreamPosition
from streams.runtime.text import shown
from streams.writing import terminate
from streams.writing.dead_writers import resolve_writer

__all__ = ["action_urls"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned action: its effects in sentences, and the function that carries it out.

    The function returns the result as a sentence.
    """

    title: str
    button: str
    sentences: Sequence[str]
    carry_out: Callable[[], str] | None
    """None if there is nothing to do."""
    about: Any
    """The database row to which the entry in the admin's log refers."""


def _disconnect(name: str, by: str) -> Plan:
    reader = Reader.objects.using(stream_settings().database).filter(key=name).first()
    if reader is None:
        raise Http404("There is no such reader.")
    who = shown(reader.name)
    if reader.kind != Reader.Kind.CONNECTION or reader.closed_at is not None:
        sentence = "Only a connection to a replication server that is still open can be disconnected."
        return Plan(f"Disconnect {who}?", "", [sentence], None, reader)

    def carry_out() -> str:
        Reader.objects.using(stream_settings().database).filter(pk=reader.pk).update(disconnect_asked_by=by)
        return f"{who} is being disconnected by {shown(reader.served_by) or 'its server'}."

    sentences = [
        f"{who}, from {shown(reader.address)}, connected since {reader.connected_at:%Y-%m-%d %H:%M:%S} UTC.",
        "Its server ends the connection within seconds. A follower comes back by itself and goes on where it was.",
    ]
    return Plan(f"Disconnect {who}?", "Disconnect it", sentences, carry_out, reader)


def _forget(name: str, by: str) -> Plan:
    cursors = list(StoredCursor.objects.using(stream_settings().database).filter(reader=name).order_by("stream"))
    row = Reader.objects.using(stream_settings().database).filter(key=reader_row_key(name)).first()
    if not cursors and row is None:
        raise Http404("There is no such reader.")
    who = shown(name)

    def carry_out() -> str:
        gone = forget_reader(name, by=by)
        return f"{who} is forgotten, with its cursors: " + (_cursors(gone) or "none here") + "."

    sentences = [
        f"Its cursors: {_cursors(cursors) or 'none in this database'}.",
        *(f"It ended with: {cursor.error}" for cursor in cursors if cursor.error),
        "They are removed, and it is listed no more. A reader of this name that is started later is a new one: it does not go on "
        "where this one was.",
        "Refused while a process runs it, or while facts of it are parked.",
    ]
    return Plan(f"Forget the reader {who}?", "Forget it", sentences, carry_out, cursors[0] if cursors else row)


def _cursors(found: Sequence[Any]) -> str:
    return ", ".join(f"{cursor.stream} at {cursor.base}" for cursor in found)


def _retire(name: str, by: str) -> Plan:
    with _cursor() as cursor:
        found = _holding(cursor, name)
    about = StreamPosition.objects.using(stream_settings().database).filter(instance_name=name).first()
    if found.retired:
        return Plan(f"Retire {name}?", "", [f"{name} is retired already."], None, about)

    def carry_out() -> str:
        with _cursor() as cursor:
            if done := resolve_writer(cursor, name, by):
                return f"{name} was proven dead and is retired on {counted(len(done), 'stream')}."
            if terminate.holding(cursor, name).lock is None:
                return (
                    f"{name} has no process, but a transaction of it is still open: it is retired when that has ended."
                )
            return f"{name} lives; it was asked to leave {', '.join(terminate.ask_to_leave(cursor, name, by))}."

    sentences = [
        f"Its process: {found.process}, " + ("alive." if found.lock else "gone."),
        "A living writer finishes what it has begun and leaves its streams; the process is not ended. A dead one is taken out, "
        "if it is proven dead.",
    ]
    return Plan(f"Retire {name}?", "Retire it", sentences, carry_out, about)


def _end(name: str, by: str) -> Plan:
    with _cursor() as cursor:
        found = _holding(cursor, name)
    about = StreamPosition.objects.using(stream_settings().database).filter(instance_name=name).first()
    title = f"End what {name} holds open?"
    if not found.transactions:
        return Plan(title, "", [f"{name} holds nothing back: no transaction of it is open for long."], None, about)

    def carry_out() -> str:
        with _cursor() as cursor:
            ended = terminate.end_sessions(cursor, found, by)
        return f"{counted(len(ended), 'transaction')} of {name} ended; what they had written is rolled back."

    sentences = [
        f"Its process: {found.process}.",
        *(f"Open: {one}." for one in found.transactions),
        "What they have written is rolled back; the writer's process sees an error and goes on.",
    ]
    return Plan(title, "End them", sentences, carry_out, about)


def _holding(cursor: Any, name: str) -> terminate.Holding:
    try:
        return terminate.holding(cursor, name)
    except UnknownWriter as error:
        raise Http404(str(error)) from error


@contextmanager
def _cursor() -> Iterator[Any]:
    connection = driver.direct_connection(application_name="replsite admin")
    with closing(connection), connection.cursor() as cursor:
        yield cursor


def _act(request: HttpRequest, plan: Plan, carry_out: Callable[[], str]) -> None:
    """Carries the action out, shows the result, and writes it to the admin's log.

    A failure is logged, too, because a part of the action may have been carried out.
    """
    try:
        done, say = carry_out(), messages.success
    except (driver.DatabaseError, StreamError) as error:
        done, say = f"{plan.title} It failed: {driver.explain(error)}", messages.error
    who = str(request.user.pk)
    LogEntry.objects.log_actions(who, [plan.about], CHANGE, change_message=done, single_object=True)
    say(request, done)


def _view(plan_of: Callable[[str, str], Plan], permission: str) -> Callable[..., HttpResponse]:
    """Returns the view of one action on the reader or writer that the query parameter ``name`` names.

    The view answers 403 without the permission, 404 if the name is missing or unknown, and 503 while the database is
    away.
    """

    def view(request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(permission):
            raise PermissionDenied
        name = request.GET.get("name", "")
        if not name or "\x00" in name:
            raise Http404("The address must name whom it is about.")
        try:
            # A POST makes the plan again: it acts on what is there now, not on what the page showed.
            plan = plan_of(name, request.user.get_username())
        except driver.connection_gone as error:
            return away_response(request, error)
        if request.method == "POST" and plan.carry_out is not None:
            _act(request, plan, plan.carry_out)
            return HttpResponseRedirect(reverse("live"))
        # Only texts go into the context, not the plan: a template would call carry_out.
        said = {"title": plan.title, "sentences": plan.sentences, "button": plan.button}
        context = {**admin.site.each_context(request), **said}
        return TemplateResponse(request, "dashboard/action.html", context)

    return admin.site.admin_view(view)


def action_urls() -> list[URLPattern]:
    """Returns the URL patterns of all actions."""
    return [
        path("admin/actions/disconnect/", _view(_disconnect, "streams.disconnect_reader"), name="disconnect-reader"),
        path("admin/actions/forget/", _view(_forget, "streams.forget_reader"), name="forget-reader"),
        path("admin/actions/retire/", _view(_retire, "streams.retire_writer"), name="retire-writer"),
        path("admin/actions/end/", _view(_end, "streams.end_writer"), name="end-writer"),
    ]
