"""Plans to which tokens a reader's cursors are set, and counts the facts that are then handled again or passed over.

Nothing is changed here. ``streams.follow.reset`` carries the plan out. Two cursors are given: that of the database of the
reader's cursors, and that of the streams' database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streams import registry
from streams.core.tokens import VectorToken
from streams.core.watermarks import lost_facts, trim_mark
from streams.db import driver
from streams.errors import TokenError, UnknownReader
from streams.follow.handlers import effects_database_of, handlers_of, readers, streams_database_of
from streams.follow.part_cursors import has_parts
from streams.follow.stored_cursors import known_streams, read_cursor
from streams.follow.table_source import present_token
from streams.reading.looker import look_now
from streams.reading.positions_by_time import CountedFacts, count_facts, position_before
from streams.runtime.amounts import counted

#: The highest position of a part: some keys were handled up to there.
_HIGHEST_PART = "SELECT max(position) FROM streams_partcursor WHERE reader = %(reader)s AND stream = %(stream)s"
_DEAD_LETTERS = """
SELECT count(*) FROM streams_parkedfact WHERE reader = %(reader)s AND stream = %(stream)s AND token > %(after)s
"""
Goal = Mapping[str, VectorToken] | datetime | None
"""Tokens by stream, or None for the present positions, or a time: all facts since then are handled again. By a time no
cursor is moved forward."""


@dataclass(frozen=True, slots=True)
class CursorMove:
    """The cursor of one stream: ``was`` is its former token, or None if there was no cursor. ``now`` is its new token."""

    stream: str
    was: VectorToken | None
    now: VectorToken


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A move of a cursor with its effects."""

    move: CursorMove
    again: CountedFacts
    """The facts that the reader has handled, and handles again."""
    passed: CountedFacts
    """The facts that it has not handled, and never handles."""
    is_shared: bool = False
    """True: processes share the stream by key, and some keys were handled further than others. ``again`` has all facts up
    to the furthest, of which the reader may not have handled some yet."""
    dead_letters: int = 0
    """The dead letters whose facts are handled again."""
    trimmed_upto: int = 0
    """Facts up to here were trimmed, and may have been new enough. 0: the new token does not depend on that."""

    def sentences(self) -> list[str]:
        """Returns what happens to the stream's facts, for people."""
        name, now = self.move.stream, self.move.now
        sentences = []
        if self.again.facts:
            begin = self.again.first_at
            of = f", from {self.again.first}" + (f", inserted {begin:%a %Y-%m-%d %H:%M:%S} UTC" if begin else "")
            most = "Up to " if self.is_shared else ""
            sentences.append(f"{name}: {most}{_number(self.again)}{of}, to {self.again.last} will be handled again.")
        if self.passed.facts:
            sentences.append(f"{name}: {_number(self.passed)} up to {self.passed.last} will never be handled.")
        if self.move.was is None:
            sentences.append(f"{name}: it has no cursor yet, and begins at {now.base}.")
        elif not sentences:
            sentences.append(
                f"{name}: no stored fact is handled again or passed over; its cursor is at {now.base} then."
            )
        if self.trimmed_upto:
            sentences.append(f"{name}: facts up to {self.trimmed_upto} were trimmed, and cannot be handled again.")
        if self.dead_letters:
            sentences.append(
                f"{name}: {counted(self.dead_letters, 'dead letter')} of these facts stay. Retry or drop them: a fact that "
                "is handled again and retried is handled twice more."
            )
        return sentences


def _number(found: CountedFacts) -> str:
    return f"{'' if found.is_whole else 'more than '}{counted(found.facts, 'fact')}"


#: What the times of facts mean. Said with each plan that was made by a time.
CLOCK = (
    "A fact's time is that of its INSERT, by the database's clock (received_at): the time of its commit is not stored. A fact "
    "that was inserted before the chosen time and committed after it is not handled again, so choose an earlier time if "
    "transactions are long."
)


def plan_resync(reader: str, goal: Goal = None) -> list[PlannedMove]:
    """Returns what ``resync_reader`` would do, and changes nothing. Raises the same errors, but not while the reader runs."""
    name = "replsite resync"
    with (
        closing(driver.direct_connection(effects_database_of(reader), application_name=name)) as held,
        closing(driver.direct_connection(streams_database_of(reader), application_name=name)) as asked,
    ):
        cursor, streams_cursor = held.cursor(), asked.cursor()
        moves = planned_moves(cursor, streams_cursor, reader, goal)
        return [_counted(cursor, streams_cursor, reader, move, goal) for move in moves]


def planned_moves(cursor: Any, streams_cursor: Any, reader: str, goal: Goal) -> list[CursorMove]:
    """Returns the moves of the reader's cursors. Raises ``UnknownReader`` and ``TokenError``."""
    streams = check_known(cursor, reader)
    # A writer's first fact, such as that of a stream with a new name, is not covered before somebody has looked.
    look_now(streams_database_of(reader), even_if_led=True)
    found = []
    for stream in goal if isinstance(goal, Mapping) and goal else streams:
        registry.get(stream)
        if stream not in streams:
            raise UnknownReader(f"Reader {reader!r} does not follow {stream!r}, but {', '.join(streams)}.")
        kept = read_cursor(cursor, reader, stream)
        was = None if kept is None else kept[0]
        if isinstance(goal, datetime):
            token = _token_before(streams_cursor, reader, stream, was, goal)
        else:
            token = _token(streams_cursor, reader, stream, goal[stream] if goal else None)
        if stream in _shared(reader) or has_parts(cursor, reader, stream):
            token = VectorToken(token.base)  # parts begin anew at the reader's cursor, which is one position then
        found.append(CursorMove(stream, was, token))
    return found


def _shared(reader: str) -> set[str]:
    return {handler.stream for handler in (handlers_of(reader) if reader in readers() else ()) if handler.by}


def check_known(cursor: Any, reader: str) -> list[str]:
    """Returns the streams of the reader. Raises ``UnknownReader`` if there is none."""
    declared = [handler.stream for handler in handlers_of(reader)] if reader in readers() else []
    found = sorted({*known_streams(cursor, reader), *declared})
    if not found:
        raise UnknownReader(
            f"There is no reader {reader!r}: no handler names it and it has no stored cursor. See manage.py streams; a "
            f"follower of the command line is set with --from, a Spark query with startingOffsets and a new checkpoint."
        )
    return found


def _present(cursor: Any, reader: str, stream: str) -> VectorToken:
    using = streams_database_of(reader)
    return present_token(cursor, stream, using, may_read_ahead=effects_database_of(reader) == using)


def _token_before(cursor: Any, reader: str, stream: str, was: VectorToken | None, moment: datetime) -> VectorToken:
    """Returns the token after which lie all facts that were inserted since the moment, and all that the reader lacks."""
    cursor.execute("SELECT clock_timestamp()")
    if moment > (now := cursor.fetchone()[0]):
        raise TokenError(
            f"{moment:%Y-%m-%d %H:%M:%S} UTC is in the future: by the database's clock it is {now:%Y-%m-%d %H:%M:%S} UTC."
        )
    present, mark = _present(cursor, reader, stream), trim_mark(cursor, stream).position
    # ``present`` is read first: the facts that it covers are all seen here.
    token = present.bounded_by(position_before(cursor, registry.get(stream).declaration, moment, mark))
    return token if was is None else token.intersect(was.merge(VectorToken(mark)))


def _token(cursor: Any, reader: str, stream: str, wanted: VectorToken | None) -> VectorToken:
    """Returns the wanted token, or that of the present positions.

    Raises ``TokenError`` if it lies beyond the present positions, or if facts after it were trimmed.
    """
    present, mark = _present(cursor, reader, stream), trim_mark(cursor, stream)
    wanted = wanted or present
    if not wanted.before_or_equal(present):
        raise TokenError(
            f"Reader {reader!r} cannot be set to {wanted.base} on stream {stream!r}: that lies beyond the present position "
            f"{present.base}, and facts up to it would be passed over as they come. Give a token up to {present.base}."
        )
    if lost := lost_facts(mark, wanted):
        raise TokenError(
            f"Reader {reader!r} cannot be set to {wanted.base} on stream {stream!r}: facts up to {max(lost.values())} were "
            f"trimmed. Give a token of at least {max(lost.values())}."
        )
    return wanted


def _counted(cursor: Any, streams_cursor: Any, reader: str, move: CursorMove, goal: Goal) -> PlannedMove:
    declaration, of = registry.get(move.stream).declaration, {"reader": reader, "stream": move.stream}
    if move.was is None:
        return PlannedMove(move, CountedFacts(), CountedFacts())
    cursor.execute(_HIGHEST_PART, of)
    highest = max(cursor.fetchone()[0] or 0, move.was.base)
    handled = move.was.merge(VectorToken(highest))
    again = count_facts(streams_cursor, declaration, move.now, handled)
    dead_letters = 0
    if again.facts:
        cursor.execute(_DEAD_LETTERS, of | {"after": move.now.base})
        dead_letters = cursor.fetchone()[0]
    mark = trim_mark(streams_cursor, move.stream).position if isinstance(goal, datetime) else 0
    return PlannedMove(
        move,
        again,
        count_facts(streams_cursor, declaration, move.was, move.now),
        highest > move.was.base,
        dead_letters,
        mark if mark and move.now.base <= mark else 0,
    )


def sentences_of(planned: Iterable[PlannedMove], goal: Goal) -> list[str]:
    """Returns the sentences of all streams, and, for a plan by time, what the times of facts mean."""
    sentences = [sentence for plan in planned for sentence in plan.sentences()]
    return [*sentences, CLOCK] if isinstance(goal, datetime) else sentences
