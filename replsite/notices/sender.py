"""Decides each ``STEP_SECONDS`` whether people are to be told of the site, stores the notice, and sends it.

One process of the site works (``replsite.one_of_site``). The notice is stored before it is sent, with the channels on which
it is not delivered. So another process goes on where this one ended: nothing is lost, and a channel gets a message twice only
if its process was killed, or lost the database, between the sending and the storing. It then has the same ID.

A channel gets the notices in their order. Who reads "well", and then a "wrong" of before, believes the latter. And a channel
that fails holds up the other one for ``LONGEST_SECONDS`` at most, however many notices wait for it.

While the database is away nobody can store a notice, or ask for the lock. Only the process that had the lock tells that, and
stores its notice when the database is back. If all processes are gone, nobody tells: only another machine can notice that.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from django.db import Error as DjangoError

from replsite.conf import site_settings
from replsite.http.deadline import Deadline, NoAnswer
from replsite.live_rows.shared import SHARED
from replsite.live_rows.snapshot import Snapshot
from replsite.notices.channels import NotDelivered, Refused, channels, send
from replsite.notices.spells import WELL, Spell
from replsite.one_of_site import OneOfSite
from replsite.status.words import HealthWord, Severity
from streams.db import driver
from streams.models import Notice
from streams.runtime.amounts import duration
from streams.runtime.logs import Condition, get_logger
from streams.runtime.text import safe_text

log = get_logger(__name__)
STEP_SECONDS = 2.0
#: The most problems that a notice names.
MOST_PROBLEMS = 20
#: A channel is tried again after twice as long each time, up to this.
LONGEST_PAUSE_SECONDS = 300.0
#: Longer than this the sender does not wait for a channel. Its call goes on, and the next attempt asks what came of it.
LONGEST_SECONDS = 20.0
#: So long a notice that fails holds later ones up on its channel. After that it may be the notice that the channel cannot take.
HOLDS_FOR = timedelta(hours=1)
#: After this a notice is given up. It stays in the table with its error.
GIVEN_UP_AFTER = timedelta(days=1)
KEPT_DAYS = 90
_COLUMNS = "key::text, at, word, sentence, problems::text, waiting::text, attempts"
_LAST = "SELECT word FROM streams_notice ORDER BY id DESC LIMIT 1"
_ADD = """
INSERT INTO streams_notice (key, at, word, sentence, problems, waiting, attempts, tried_at, error)
VALUES (%(key)s, %(at)s, %(word)s, %(sentence)s, %(problems)s::jsonb, %(waiting)s::jsonb, %(attempts)s, %(tried_at)s, %(error)s)
ON CONFLICT (key) DO NOTHING
"""
_WAITING = f"""
SELECT {_COLUMNS}, tried_at IS NULL
    OR clock_timestamp() - tried_at >= least(power(2, least(attempts, 20)), %(longest)s) * interval '1 second'
FROM streams_notice WHERE waiting <> '[]'::jsonb AND at > clock_timestamp() - %(given_up)s::interval ORDER BY id
"""
_STORE = """
UPDATE streams_notice SET waiting = %(waiting)s::jsonb, attempts = %(attempts)s, error = %(error)s,
    tried_at = clock_timestamp()
WHERE key = %(key)s
"""
_FORGET = "DELETE FROM streams_notice WHERE at < clock_timestamp() - %(days)s * interval '1 day'"


class NoticeSender(OneOfSite):
    """A thread that sends notices while this process holds the lock."""

    def __init__(self, get: Callable[[], Snapshot] = SHARED.get, step_seconds: float = STEP_SECONDS) -> None:
        super().__init__("notices", "replsite.notices", step_seconds, Condition(log, "notices.paused", "notices.go_on"))
        settings = site_settings()
        self._spell = Spell(settings.notice_after_seconds, settings.notice_well_after_seconds)
        self._snapshot = Deadline(get, settings.health_seconds, "replsite-notices-look")
        self._leads = False
        #: What people were told last, as this process knows it.
        self._word = ""
        #: Notices of the time without the database.
        self._unstored: list[Notice] = []
        #: Channel -> the notice that was sent last, and what came of it.
        self._sent: dict[str, tuple[uuid.UUID, Future[None]]] = {}

    def start(self) -> None:
        """Starts the thread, if the settings name a channel."""
        if channels():
            super().start()

    def work(self) -> None:
        """Looks at the site if this process holds the lock, and sends what is to be sent."""
        seen = None
        if self._leads:
            # Not on the connection with the lock: if the database hangs, so does who waits for it. The lock is kept meanwhile;
            # otherwise another process would take it, and tell the same.
            try:
                seen = self._seen()
            except NoAnswer as error:
                self._without_database(f"no answer for {duration(error.seconds)}")
                return
            except (DjangoError, driver.DatabaseError) as error:
                self._without_database(driver.explain(error))
                return
        if self.holds_lock() and seen is not None:
            with self.cursor as cursor:
                self._go_on(cursor, *seen)

    def log_defect(self) -> None:
        log.exception("notices.look_failed")

    def connected(self, cursor: Any, *, is_held: bool) -> None:
        self._leads, was = is_held, self._leads
        if was and not is_held:  # another process took over while the database was away
            self._store_unstored(cursor)

    def _go_on(self, cursor: Any, is_wrong: bool, sentence: str, problems: Sequence[Any]) -> None:
        self._store_unstored(cursor)
        cursor.execute(_LAST)
        (self._word,) = cursor.fetchone() or ("",)
        self._decide(is_wrong, sentence, problems, cursor)
        for notice in self._deliver(self._waiting(cursor)):
            cursor.execute(_STORE, _values(notice))

    def _seen(self) -> tuple[bool, str, list[dict[str, str]]]:
        # (true if the site is wrong, sentence, problems)
        health = self._snapshot.ask().health
        wrong = [problem for problem in health.problems if problem.verdict.severity == Severity.WRONG]
        problems = [
            {
                "subject": safe_text(p.subject),
                "word": str(p.verdict.word),
                "sentence": safe_text(p.verdict.sentence, 500),
            }
            for p in wrong[:MOST_PROBLEMS]
        ]
        return health.word == HealthWord.WRONG, health.sentence, problems

    def _decide(self, is_wrong: bool, sentence: str, problems: Sequence[Any], cursor: Any = None) -> None:
        word = self._spell.step(self._word, time.monotonic(), is_wrong=is_wrong)
        if not word:
            return
        if word == WELL:
            sentence, problems = f"Nothing has been wrong for {duration(self._spell.well_after_seconds)}.", []
        notice = Notice(
            key=uuid.uuid4(), at=datetime.now(UTC), word=word, sentence=sentence, problems=list(problems),
            waiting=channels(), attempts=0, error="",
        )  # fmt: skip
        self._word = word
        if cursor is None:
            self._unstored.append(notice)
            return
        cursor.execute(_ADD, _values(notice))
        cursor.execute(_FORGET, {"days": KEPT_DAYS})

    def _without_database(self, text: str) -> None:
        problem = {"subject": "the database", "word": "away", "sentence": safe_text(text, 500)}
        self._decide(True, f"The database cannot be read: {safe_text(text, 300)}", [problem])
        for _ in self._deliver([(notice, self._is_due(notice)) for notice in self._unstored]):
            pass

    @staticmethod
    def _is_due(notice: Notice) -> bool:
        pause = min(2.0 ** min(notice.attempts, 20), LONGEST_PAUSE_SECONDS)
        return notice.tried_at is None or datetime.now(UTC) >= notice.tried_at + timedelta(seconds=pause)

    def _store_unstored(self, cursor: Any) -> None:
        while self._unstored:
            cursor.execute(_ADD, _values(self._unstored[0]))
            self._unstored.pop(0)

    def _deliver(self, waiting: Iterable[tuple[Notice, bool]]) -> Iterator[Notice]:
        """Sends notices that are due on the channels on which they wait, and yields each that was tried."""
        held = set[str]()  # the channels on which an earlier notice waits
        for notice, is_due in waiting:
            open_to_it = [channel for channel in notice.waiting if channel not in held]
            if is_due and open_to_it:
                held.update(self._attempt(notice, open_to_it))
                yield notice
            elif notice.at > datetime.now(UTC) - HOLDS_FOR:
                held.update(notice.waiting)

    def _attempt(self, notice: Notice, open_to_it: Sequence[str]) -> list[str]:
        # Returns the channels that are not to be tried with later notices.
        held, errors = [], []
        for channel in open_to_it:
            waits = False
            try:
                self._send(channel, notice)
                log.info("notice.sent", channel=channel, word=notice.word, id=str(notice.key))
            except NotDelivered as error:
                errors.append(str(error))
                waits = not isinstance(error, Refused)
                log.warning("notice.not_sent", channel=channel, word=notice.word, id=str(notice.key), error=str(error))
            if waits:
                held.append(channel)
            else:
                notice.waiting = [other for other in notice.waiting if other != channel]
        notice.tried_at = datetime.now(UTC)
        notice.error = "; ".join(errors)
        notice.attempts += bool(errors)
        return held

    def _send(self, channel: str, notice: Notice) -> None:
        """Sends the notice in a thread, and waits for ``LONGEST_SECONDS`` at most. Raises ``NotDelivered``."""
        key, sent = self._sent.get(channel, (None, None))
        if sent is None or (sent.done() and (key != notice.key or sent.exception() is not None)):
            key, sent = notice.key, Future()
            self._sent[channel] = key, sent
            threading.Thread(
                target=_answer, args=(sent, channel, notice), name=f"replsite-notices-{channel}", daemon=True
            ).start()
        if key != notice.key:
            raise NotDelivered(f"{channel}: it is still busy with an earlier message")
        try:
            sent.result(LONGEST_SECONDS)
        except TimeoutError:
            raise NotDelivered(f"{channel}: no answer for {duration(LONGEST_SECONDS)}") from None

    def _waiting(self, cursor: Any) -> list[tuple[Notice, bool]]:
        # (notice, true if it is due)
        cursor.execute(_WAITING, {"given_up": f"{GIVEN_UP_AFTER.total_seconds()} s", "longest": LONGEST_PAUSE_SECONDS})
        return [
            (
                Notice(
                    key=uuid.UUID(key), at=at, word=word, sentence=sentence, problems=orjson.loads(problems),
                    waiting=orjson.loads(waiting), attempts=attempts, error="",
                ),
                is_due,
            )
            for key, at, word, sentence, problems, waiting, attempts, is_due in cursor.fetchall()
        ]  # fmt: skip


def _answer(sent: Future[None], channel: str, notice: Notice) -> None:
    try:
        send(channel, notice)
    except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
        sent.set_exception(error)
    else:
        sent.set_result(None)


def _values(notice: Notice) -> dict[str, Any]:
    return {
        "key": str(notice.key), "at": notice.at, "word": notice.word, "sentence": notice.sentence,
        "problems": orjson.dumps(notice.problems).decode(), "waiting": orjson.dumps(notice.waiting).decode(),
        "attempts": notice.attempts, "tried_at": notice.tried_at, "error": notice.error,
    }  # fmt: skip
