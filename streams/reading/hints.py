"""Hints: notifications that somebody should look. They say nothing that is believed.

Three kinds of payloads travel in the site's channel, besides those of ``streams.reading.position_notifications``:

* a *hint* of somebody who committed facts: ``?WORD STREAM …``, with a random word. It wakes the looker
  (``streams.reading.looker``), and readers of these streams that look for themselves. If the word ends with ``+``, facts
  without a hint may follow for ``HINT_GAP_SECONDS``, so the looker looks again until then.
* an *answer*: `` WORD``. The looker looked after it had received this hint, and all that PostgreSQL sent before it.
* the name of a stream, by which the looker says that it stored positions. Readers then read the table.

A lost hint delays facts until the looker's next look. A forged one causes a look.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.db import Error as DjangoError

from streams.db import driver, testcase
from streams.runtime.logs import get_logger

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = [
    "CHANNEL",
    "HINT_GAP_SECONDS",
    "answer_to",
    "answered_word",
    "hint",
    "hint_after_commit",
    "hinted_streams",
    "hinted_word",
    "more_follows",
    "send_payloads",
]

log = get_logger(__name__)
CHANNEL = "replsite_streams"
#: A process whose facts come in quick succession sends one hint in this time, and says so with it.
HINT_GAP_SECONDS = 0.025
#: A fact that comes after a pause of this length has a hint of its own, after which nothing follows without one.
PAUSE_SECONDS = 0.004
#: No name of a stream begins so. Readers of positions pass such payloads over, as those of unknown streams.
_HINT, _MORE_FOLLOWS, _ANSWER = "?", "+", " "
_WORD_BYTES = 4
#: PostgreSQL takes 8,000 bytes. A transaction with so many streams wakes their readers when the positions are stored.
_LONGEST_HINT = 4_000

#: Waits for no disk, as ``_SEND_HINT``. What it names was confirmed before.
_SEND_PAYLOADS = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s::text, payload)
  FROM unnest(%(payloads)s::text[]) AS told (payload)
"""
#: While a session commits many notifications, all others with notifications wait for it, so they wait no longer than this. A
#: commit with few of them takes as long as the disk.
_HINT_WAITS = "100ms"
#: No hint waits for the disk: one that a crash takes back was of use to nobody.
_SEND_HINT = f"""
SELECT set_config('lock_timeout', '{_HINT_WAITS}', true), set_config('synchronous_commit', 'off', true),
       pg_notify(%(channel)s::text, %(hint)s::text)
"""
#: Channel -> when this process sends hints again, and when its last fact came.
_hinted: dict[str, tuple[float, float]] = {}
_guard = threading.Lock()


def hinted_word(payload: str) -> str | None:
    return payload[len(_HINT) :] if payload.startswith(_HINT) else None


def more_follows(word: str) -> bool:
    """Returns true if facts without a hint may follow this hint for ``HINT_GAP_SECONDS`` from when it is received."""
    return word.partition(" ")[0].endswith(_MORE_FOLLOWS)


def hinted_streams(payload: str) -> list[str]:
    return payload.split(" ")[1:] if payload.startswith(_HINT) else []


def answered_word(payload: str) -> str | None:
    return payload[len(_ANSWER) :] if payload.startswith(_ANSWER) else None


def answer_to(word: str) -> str:
    return _ANSWER + word


def hint(cursor: Any, streams: Iterable[str] = ()) -> bool:
    """Sends a hint, as a statement of its own, unless an earlier one of this process said that facts follow without one.

    Must be called after the COMMIT of the facts, in autocommit mode, on the connection that appended or on another. In the
    transaction of the facts, PostgreSQL would let all commits with notifications of the whole server wait for each other.
    Returns true if a hint was sent. Raises the driver's error, after 0.1 s, if the server takes none at present.
    """
    channel = driver.channel(cursor, CHANNEL)
    now = time.monotonic()
    with _guard:
        due, fact_at = _hinted.get(channel, (now, -math.inf))
        more_follows = now - fact_at < PAUSE_SECONDS
        _hinted[channel] = due if now < due else now + HINT_GAP_SECONDS * more_follows, now
        if now < due:
            # This fact was committed before, and the looker looks once more after it has received the hint, and then waited
            # for HINT_GAP_SECONDS.
            return False
    word = secrets.token_hex(_WORD_BYTES) + _MORE_FOLLOWS * more_follows
    if len((named := " ".join([word, *streams])).encode()) <= _LONGEST_HINT:
        word = named
    try:
        cursor.execute(_SEND_HINT, {"channel": channel, "hint": _HINT + word})
    except BaseException:
        _hinted.pop(channel, None)  # nobody was told that more follows
        raise
    return True


def hint_after_commit(connection: BaseDatabaseWrapper, stream: str) -> None:
    """Sends a hint when the facts that were appended on this connection are committed, before other hooks are called.

    Sends none from a ``TestCase``, whose transaction is never committed, nor if Django does not manage the transaction. Then
    the looker finds the facts by itself, within a second.
    """
    if testcase.is_in_test(connection):
        return
    if not connection.in_atomic_block:
        if connection.get_autocommit() and driver.transaction_status(connection.connection) == driver.IDLE:
            _Hint(connection, stream)()
        return
    hooks: list[Any] = connection.run_on_commit
    if (known := next((hook for _, hook, _ in hooks if type(hook) is _Hint), None)) is not None:
        known.streams.add(stream)
    elif connection.commit_on_exit:
        hooks.insert(0, (set(connection.savepoint_ids), _Hint(connection, stream), True))


class _Hint:
    """The hook that Django calls after COMMIT."""

    def __init__(self, connection: BaseDatabaseWrapper, stream: str) -> None:
        self._connection, self.streams = connection, {stream}

    def __call__(self) -> None:
        try:
            with self._connection.cursor() as cursor:
                hint(cursor, self.streams)
        except DjangoError as error:  # the facts are committed, and will be found
            log.debug("hint.not_sent", error=str(error).strip())


def send_payloads(cursor: Any, payloads: Iterable[str]) -> None:
    """Sends these payloads, in one statement."""
    cursor.execute(_SEND_PAYLOADS, {"channel": driver.channel(cursor, CHANNEL), "payloads": list(payloads)})


def _after_fork() -> None:
    global _guard  # noqa: PLW0603
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
