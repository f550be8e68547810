"""The actions of operators on streams and readers: of each the question, what it would do, and the doing.

Open appends that hold a stream back are ended, or the sessions for whose locks they wait. Readers are disconnected,
forgotten, set to the present positions, or replayed from a time or a fact. The dead letters of readers are retried and
dropped. The admin's pages (``replsite.dashboard.action_pages``), the HTTP API and ``manage.py streams abort`` and
``forget`` are all made of these.

To disconnect a reader, the action marks the reader's row, and the server of the reader ends the connection. To retry dead
letters, the action stores the request on the reader's cursors. The process that runs the reader then carries the request
out, even if the process of the action has the same handlers. No action waits until another process has reacted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from shlex import quote
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Count, QuerySet
from django.db.models.functions import Now
from django.http import Http404

from replsite.live_rows.reading import limits
from replsite.live_rows.shared import SHARED
from streams import registry
from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.errors import StreamError
from streams.follow import ask_retry, drop_parked, forget_reader, parked_facts, plan_resync, resync_reader
from streams.follow.handlers import effects_database_of, load_handlers
from streams.follow.lease import reader_row_key
from streams.follow.resync_plan import sentences_of
from streams.holds.end import blockers, end_blockers, end_holders, old_holders
from streams.models import ParkedFact, Reader, RecordedServer, StoredCursor, StreamPosition
from streams.reading.reader_table import QUERY
from streams.runtime.amounts import counted
from streams.runtime.moments import moment_of
from streams.runtime.text import safe_text


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the form on an action's page. ``name`` is that of the query parameter."""

    name: str
    label: str
    type: str
    value: str
    choices: Sequence[str] = ()


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
    asks: Sequence[Field] = ()
    """What the page asks for before it shows the effects."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for an action: names of the stream or reader and of the user, and which of a reader's streams it is about.

    If ``stream`` or ``token`` is None, the action is about all streams of the reader, or about the dead letters of all tokens.
    """

    name: str
    by: str
    stream: str | None = None
    token: int | None = None
    chosen: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Dead letters that were chosen from the list: tokens by stream. Takes the place of ``stream`` and ``token``."""
    since: str = ""
    """The time from which a reader is replayed, in any of the forms that commands take. Empty: none is given."""


#: The most dead letters that their page lists.
FACTS_SHOWN = 50


def _disconnect(asked: Asked) -> Plan:
    name, by = asked.name, asked.by
    reader = Reader.objects.using(stream_settings().database).filter(key=name).first()
    if reader is None:
        raise Http404("There is no such reader.")
    who = safe_text(reader.name)
    if reader.kind != Reader.Kind.CONNECTION or reader.closed_at is not None:
        sentence = "Only a connection to a replication server that is still open can be disconnected."
        return Plan(f"Disconnect {who}?", "", [sentence], None, reader)

    def carry_out() -> str:
        Reader.objects.using(stream_settings().database).filter(pk=reader.pk).update(disconnect_asked_by=by)
        return f"{who} is being disconnected by {safe_text(reader.served_by) or 'its server'}."

    sentences = [
        f"{who}, from {safe_text(reader.address)}, connected since {reader.connected_at:%Y-%m-%d %H:%M:%S} UTC.",
        "Its server ends the connection within seconds. A follower comes back by itself and goes on where it was.",
    ]
    return Plan(f"Disconnect {who}?", "Disconnect it", sentences, carry_out, reader)


def _forget(asked: Asked) -> Plan:
    name, by = asked.name, asked.by
    cursors = [cursor for cursor in cursors_of(name) if asked.stream in (None, cursor.stream)]
    keys = [reader_row_key(name), f"{QUERY}{name}"]
    row = Reader.objects.using(stream_settings().database).filter(key__in=keys).first()
    if not cursors and row is None and asked.stream is None:
        return _forget_record(asked)
    if not cursors and (row is None or asked.stream is not None):
        raise Http404(f"There is no reader {name!r}{f' on {asked.stream}' if asked.stream else ''}.")
    who = safe_text(name)

    def carry_out() -> str:
        forgotten = forget_reader(name, asked.stream, by)
        return f"{who} is forgotten, with its cursors: " + (_cursors(forgotten) or "none here") + "."

    sentences = [
        f"Its cursors: {_cursors(cursors) or 'none in this database'}.",
        *(f"It ended with: {cursor.error}" for cursor in cursors if cursor.error),
        "They are removed, and it is listed no more. A reader of this name that is started later is a new one: it does not go on "
        "where this one was.",
        "Refused while a process runs it, or while facts of it are parked.",
    ]
    return Plan(f"Forget the reader {who}?", "Forget it", sentences, carry_out, cursors[0] if cursors else row)


def _forget_record(asked: Asked) -> Plan:
    name, by = asked.name, asked.by
    record = RecordedServer.objects.using(stream_settings().database).filter(name=name).first()
    if record is None:
        raise Http404(f"There is no reader {name!r}.")

    def carry_out() -> str:
        forget_reader(name, by=by)
        return f"{safe_text(name)} is forgotten."

    sentences = [
        f"It records {safe_text(record.server_name)}, and was last seen at {record.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC.",
        "What it has recorded stays. It is no trouble any more, and is listed for a day at most.",
        "Refused while a process records under this name.",
    ]
    return Plan(f"Forget the record {safe_text(name)}?", "Forget it", sentences, carry_out, record)


def cursors_of(reader: str) -> list[StoredCursor]:
    load_handlers()  # the handlers declare the database of a reader's cursors
    return list(StoredCursor.objects.using(effects_database_of(reader)).filter(reader=reader).order_by("stream"))


def _resync(asked: Asked) -> Plan:
    name, cursors = asked.name, cursors_of(asked.name)
    if not cursors:
        raise Http404("There is no such reader with a cursor.")
    who, key = safe_text(name), reader_row_key(name)

    def carry_out() -> str:
        done = resync_reader(name, by=asked.by)
        moved = ", ".join(f"{new.stream} {'' if new.was is None else new.was.base} -> {new.now.base}" for new in done)
        return f"{who} goes on at the present positions: {moved}."

    unread = next((reader.lag_facts for reader in SHARED.get(0).readers if reader.key == key), 0)
    sentences = [
        f"Its cursors: {_cursors(cursors)}.",
        *(f"It ended with: {cursor.error}" for cursor in cursors if cursor.error),
        "They are set to the present positions. "
        + (f"It never handles the {counted(unread, 'fact')} in between." if unread else "It has read everything."),
        "Refused while a process runs it. To set it to another place, also a lower one: "
        f"manage.py resync reader {quote(name)} --from STREAM=TOKEN. To have facts handled again, replay it.",
    ]
    return Plan(f"Resync the reader {who}?", "Pass over them", sentences, carry_out, cursors[0])


def _replay(asked: Asked) -> Plan:
    name, cursors = asked.name, cursors_of(asked.name)
    if not cursors:
        raise Http404("There is no such reader with a cursor.")
    who, title = safe_text(name), f"Replay the reader {safe_text(name)}?"
    streams = [cursor.stream for cursor in cursors]
    with suppress(ValueError):  # said below
        asked = replace(asked, since=asked.since and f"{_moment(asked.since):%Y-%m-%dT%H:%M:%S}")
    asks = [
        Field("since", "Since (UTC)", "datetime-local", asked.since),
        Field("token", "or after the fact", "number", "" if asked.token is None else str(asked.token)),
        Field("stream", "of the stream", "select", asked.stream or "", streams),
    ]
    stands = [f"Its cursors: {_cursors(cursors)}.", *(f"It ended with: {c.error}" for c in cursors if c.error)]
    refused = "Refused while a process runs it. The same as a command: manage.py resync reader"
    if not asked.since and asked.token is None:
        sentences = [
            *stands,
            "Its facts since a time, or after a fact, are handled again.",
            f"{refused} {quote(name)} --since TIME.",
        ]
        return Plan(title, "", sentences, None, cursors[0], asks)
    try:
        goal, option = _goal_of(asked, streams)
        planned = plan_resync(name, goal)
    except (ValueError, StreamError) as error:
        return Plan(title, "", [str(error)], None, cursors[0], asks)

    def carry_out() -> str:
        done = resync_reader(name, goal, by=asked.by)
        moved = ", ".join(f"{new.stream} {'' if new.was is None else new.was.base} -> {new.now.base}" for new in done)
        return f"{who} is replayed, {option}: {moved}. {' '.join(s for plan in planned for s in plan.sentences())}"

    sentences = [*sentences_of(planned, goal), *stands, f"{refused} {quote(name)} {option}"]
    return Plan(title, "Handle them again", sentences, carry_out, cursors[0], asks)


def _goal_of(asked: Asked, streams: Sequence[str]) -> tuple[datetime | dict[str, VectorToken], str]:
    """Returns (place from which a reader is replayed, the command's option for it). Raises ``ValueError`` for both or neither."""
    if asked.since:
        if asked.token is not None:
            raise ValueError("Give a time or a fact, not both.")
        return _moment(asked.since), f"--since {asked.since}"
    stream = asked.stream or (streams[0] if len(streams) == 1 else None)
    if stream is None or asked.token is None:
        raise ValueError(f"Say of which stream the fact is: {', '.join(streams)}.")
    return {stream: VectorToken(asked.token)}, f"--from {stream}={asked.token}"


def _moment(text: str) -> datetime:
    return moment_of(text, time.time_ns() // 1_000_000)


def _retry(asked: Asked) -> Plan:
    facts, found = _dead_letters(asked)
    who = safe_text(asked.name)

    def carry_out() -> str:
        streams = [name for which in _which(asked) for name in ask_retry(asked.name, *which, by=asked.by)]
        letters = "all dead letters" if asked.token is None else f"the dead letter {asked.token}"
        if asked.chosen:
            letters = counted(sum(map(len, asked.chosen.values())), "chosen dead letter")
        return f"{who} was asked to retry {letters} of {', '.join(streams)}."

    sentences = [
        *_described(facts, asked),
        "The process of the reader calls its handlers with them once more, in order, each in a transaction of its own. Each "
        "that is handled is removed. Those that fail again stay.",
        _when_retried(asked.name),
    ]
    return Plan(f"Retry dead letters of {who}?", "Retry", sentences, carry_out, found[0])


def _when_retried(reader: str) -> str:
    if _runs(reader):
        return "The process runs, and begins within seconds."
    command = f"manage.py runhandlers {quote(reader)}"
    return f"The process does not run: they are retried when it starts ({command})."


def _runs(reader: str) -> bool:
    lost_after = timedelta(seconds=limits().lost_after_seconds)
    seen = Now() - lost_after, Now() + lost_after  # if the clock was set back, a sign of life may lie in the future
    cursors = StoredCursor.objects.using(effects_database_of(reader)).filter(reader=reader, ended_at=None)
    return cursors.filter(seen_at__range=seen).exists()


def retries(cursors: Sequence[StoredCursor]) -> tuple[list[str], bool]:
    """Returns (sentences about the last requests to retry dead letters, true if one of these requests has no result yet).

    There is one sentence for each cursor on which a request is stored.
    """
    asked = [cursor for cursor in cursors if cursor.retry_asked_at is not None]
    if not asked:
        return [], False
    when = _when_retried(asked[0].reader)
    sentences = []
    for cursor in asked:
        some = "all dead letters" if cursor.retry_tokens is None else counted(len(cursor.retry_tokens), "dead letter")
        state = when if cursor.retry_began_at is None else "They are being retried."
        if cursor.retry_result:
            state = f"Result: {safe_text(cursor.retry_result, 200)}."
        at = f"{cursor.retry_asked_at:%Y-%m-%d %H:%M:%S} UTC"
        sentences.append(f"{cursor.stream}: {safe_text(cursor.retry_asked_by)} asked at {at} to retry {some}. {state}")
    return sentences, any(not cursor.retry_result for cursor in asked)


def _drop(asked: Asked) -> Plan:
    facts, found = _dead_letters(asked)
    who = safe_text(asked.name)

    def carry_out() -> str:
        dropped = sum(drop_parked(asked.name, *which) for which in _which(asked))
        return f"{counted(dropped, 'dead letter')} of {who} dropped."

    sentences = [
        *_described(facts, asked),
        "They are removed for good, without being handled. The log keeps their streams, tokens and errors.",
    ]
    return Plan(f"Drop dead letters of {who}?", "Drop", sentences, carry_out, found[0])


def _dead_letters(asked: Asked) -> tuple[QuerySet[ParkedFact], list[ParkedFact]]:
    load_handlers()
    facts = reduce(or_, (parked_facts(asked.name, *which) for which in _which(asked)))
    if not (found := list(facts[:FACTS_SHOWN])):
        raise Http404("There are no such dead letters.")
    return facts, found


def _which(asked: Asked) -> list[tuple[str | None, int | Sequence[int] | None]]:
    """Returns the streams and tokens of the dead letters that the request is about."""
    return list(asked.chosen.items()) if asked.chosen else [(asked.stream, asked.token)]


def _described(facts: QuerySet[ParkedFact], asked: Asked) -> list[str]:
    if asked.token is not None:
        return [f"{f.stream} {f.token}, {counted(f.attempts, 'attempt')}: {safe_text(f.error, 500)}" for f in facts]
    by_error = facts.order_by().values_list("stream", "error").annotate(number=Count("*")).order_by("-number")[:5]
    return [f"{counted(number, 'fact')} of {stream}: {safe_text(error, 500)}" for stream, error, number in by_error]


def _cursors(found: Sequence[Any]) -> str:
    return ", ".join(f"{cursor.stream} at {cursor.base}" for cursor in found)


def _end_holders(asked: Asked) -> Plan:
    stream, by, about = asked.name, asked.by, _stream_row(asked.name)
    with _cursor() as cursor:
        found = old_holders(cursor, stream)
        waits_for = blockers(cursor, found)
    title = f"End what holds {stream} back?"
    if not found:
        return Plan(title, "", [f"Nothing holds {stream} back: no append to it is open for long."], None, about)

    def carry_out() -> str:
        with _cursor() as cursor:
            ended = end_holders(cursor, found, by)
        done = f"{counted(len(ended), 'transaction')} ended; what they had written is rolled back."
        if left := len(found) - len(ended):
            raise StreamError(
                f"{done} {counted(left, 'open append')} of {stream} not ended: over by now, or a prepared transaction, "
                "which ROLLBACK PREPARED ends. Look again: manage.py streams"
            )
        return done

    sentences = [
        *(
            f"Open: {safe_text(str(h), 300)}, holds it back at {h.bound}; its last statement: "
            f"{safe_text(h.statement or '', 200)}"
            for h in found
        ),
        *(f"It waits for a lock of {safe_text(str(h), 300)}." for h in waits_for),
        "What they have written is rolled back. Their programs see an error and go on.",
    ]
    return Plan(title, "End them", sentences, carry_out, about)


def _end_blockers(asked: Asked) -> Plan:
    stream, by, about = asked.name, asked.by, _stream_row(asked.name)
    with _cursor() as cursor:
        found = blockers(cursor, old_holders(cursor, stream))
    title = f"End the session whose lock an append to {stream} waits for?"
    if not found:
        return Plan(title, "", [f"No append to {stream} waits for a lock of another session."], None, about)

    def carry_out() -> str:
        with _cursor() as cursor:
            ended = end_blockers(cursor, found, by)
        return f"{counted(len(ended), 'session')} ended; what they had written is rolled back."

    sentences = [
        *(f"It holds the lock: {safe_text(str(h), 300)}." for h in found),
        "It is not the session that appends, and may belong to another program: its transaction is rolled back, and the program "
        "sees an error. The append goes on.",
        "PostgreSQL allows it if the site's role is that of the session, or a member of pg_signal_backend.",
    ]
    return Plan(title, "End it", sentences, carry_out, about)


def _stream_row(stream: str) -> StreamPosition:
    """Returns a row of the stream, to which the entry in the admin's log refers. Raises ``Http404`` for an unknown stream.

    If the stream has no row yet, returns one that is not stored.
    """
    if registry.find(stream) is None:
        raise Http404("There is no such stream.")
    found = StreamPosition.objects.using(stream_settings().database).filter(stream=stream).first()
    return found or StreamPosition(stream=stream)


@contextmanager
def _cursor() -> Iterator[Any]:
    connection = driver.direct_connection(application_name="replsite action")
    with closing(connection), connection.cursor() as cursor:
        yield cursor


def perform(user_id: Any, plan: Plan, carry_out: Callable[[], str], via: str = "") -> tuple[str, bool]:
    """Calls ``carry_out``, and writes its result to the admin's log. Returns (sentence with the result, true if it succeeded).

    A failure is logged, too, because a part of the action may have been carried out. ``via`` is added to the log's entry.
    """
    try:
        done, is_done = carry_out(), True
    except (driver.DatabaseError, StreamError) as error:
        done, is_done = f"{plan.title} It failed: {driver.explain(error)}", False
    LogEntry.objects.log_actions(str(user_id), [plan.about], CHANGE, change_message=f"{done}{via}", single_object=True)
    return done, is_done


@dataclass(frozen=True, slots=True)
class Action:
    """An action on a reader or a stream. ``plan`` raises ``Http404`` if it is unknown."""

    plan: Callable[[Asked], Plan]
    permission: str
    path: str
    """The path of the action's page below ``actions/``."""
    is_of_parked: bool = False
    """True: it is about dead letters, and their page is shown afterwards."""


#: The actions by the names of their URLs.
ACTIONS = {
    "disconnect-reader": Action(_disconnect, "streams.disconnect_reader", "disconnect"),
    "forget-reader": Action(_forget, "streams.forget_reader", "forget"),
    "resync-reader": Action(_resync, "streams.resync_reader", "resync"),
    "replay-reader": Action(_replay, "streams.resync_reader", "replay"),
    "retry-parked": Action(_retry, "streams.retry_parked", "parked/retry", is_of_parked=True),
    "drop-parked": Action(_drop, "streams.drop_parked", "parked/drop", is_of_parked=True),
    "end-holder": Action(_end_holders, "streams.end_holder", "end"),
    "end-blocker": Action(_end_blockers, "streams.end_holder", "end-blocker"),
}
