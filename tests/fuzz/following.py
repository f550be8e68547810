"""The real follower against servers that are cut, restarted, behind, or lie; and the linear view against a plain list.

`check_history`: two servers (the product's `Announcer` and encoder) tell of a made-up `History` while it goes on; the
network cuts anywhere, catching up fails now and then, the follower is killed and goes on from the cursor that it told.
What it handed out must equal the table, and what it claimed must never have passed an open transaction.
`check_lies`: a server that says anything. Nothing but named errors, bounded memory, and each writer's facts still
ascend.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from unittest import mock

from streams.core.tokens import VectorToken
from streams.replication.client import follower as follower_module
from streams.replication.client.catch_up import Writers
from streams.replication.client.follower import Follower, FollowerOptions
from streams.replication.client.links import Counters
from streams.replication.errors import CatchUpError, TooManyWriters
from streams.replication.protocol import cursors as cursors_module
from streams.replication.protocol.announcer import Announce, Announcer, Read, encode_rows, position_line
from streams.replication.protocol.commands import Command, Error, Ping, Position, RData, parse_line
from streams.replication.protocol.ordering import FollowedRow, LinearView, View
from tests.fuzz.conversation import Broken
from tests.fuzz.history import STREAM, History

__all__ = ["check_history", "check_lies", "check_linear_view"]

#: Small, so that small histories cross them.
LIMITS = {"BATCHES_LIMIT_BYTES": 3_000, "NAMES_LIMIT": 60, "FACTS_ABOVE_LIMIT": 4}


def _hold(rule: bool, what: str) -> None:
    if not rule:
        raise Broken(what)


class _LeapingLoop(asyncio.SelectorEventLoop):
    """A loop that waits for nothing: where it would sleep, its clock leaps."""

    def __init__(self) -> None:
        super().__init__(_LeapingSelector(self))
        self.leapt = 0.0

    def time(self) -> float:
        return super().time() + self.leapt


class _LeapingSelector(selectors.DefaultSelector):
    def __init__(self, loop: _LeapingLoop) -> None:
        super().__init__()
        self._of = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self._of.leapt += timeout
        return super().select(0)


def _run(work: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=_LeapingLoop) as runner:
        runner.run(work)


class _Killed(Exception):
    """The follower's process dies."""


class _Row:
    def __init__(self, token: int, row: object) -> None:
        self.token, self.row = token, row


class _Server:
    """What a replication server says of the history: the product's own rounds, and the lines for one client."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._announcer = Announcer([STREAM], "stand-in", pace_interval_seconds=0.0)
        self._announcer.start(history.snapshot())
        self.lines: list[bytes] = []

    def connect(self) -> None:
        """A client comes; rows go to it at once, also before it has asked for positions."""
        self.lines = []
        if self._history.rng.random() < 0.5:
            self._history.step()
            self.round()
        early = [line for line in self.lines if line.startswith(b"RDATA")]
        self.lines = [b"SERVER localhost\n", b"PING 1\n", *early]
        self.lines += [position_line(*at[:2], at[2], at[2]) for at in self._announcer.positions()]

    def round(self, *, whole: bool = False) -> None:
        """Tell what is new; a read may be cut short, as a limited one is."""
        history, rng = self._history, self._history.rng
        shortened: set[str] = set()
        for step in self._announcer.steps(history.snapshot(), 0.0):
            if isinstance(step, Announce):
                self._say(position_line(STREAM, step.writer, step.position, step.position), step.writer, step.position)
            elif isinstance(step, Read):
                rows = history.rows(step.writer, step.after, step.upto)
                reached = step.upto
                if rows and not whole and rng.random() < 0.3:
                    reached = rng.choice(rows)[0]
                    shortened.add(step.writer)
                kept = [
                    _Row(number, [f"{number}.{row}" * rng.choice([1, 1, 9])])
                    for number, _, row in rows
                    if number <= reached
                ]
                self._say(encode_rows(step, kept, reached, 60).data, step.writer, reached)
            elif step.writer not in shortened:
                self._say(position_line(STREAM, step.writer, step.previous, step.new), step.writer, step.new)

    def _say(self, lines: bytes, writer: str, position: int) -> None:
        self.lines += lines.splitlines(keepends=True)
        self._announcer.record_sent(STREAM, writer, position)


class _Site:
    """Connector, link and catch-up of the follower; each call lets the history go on."""

    counters = Counters()

    def __init__(self, rng: random.Random, steps: int) -> None:
        self.rng, self.left = rng, steps
        self.history = History(rng)
        self.servers = [_Server(self.history), _Server(self.history)]
        self._server = self.servers[0]
        self._rounds_at_rest = 0

    def __str__(self) -> str:
        return "a made-up server"

    def can_reset(self, stream: str) -> bool:
        return False

    def covers(self, stream: str) -> bool:
        return stream == STREAM

    def _go_on(self) -> None:
        """Some steps of everything else."""
        for _ in range(self.rng.randint(0, 4)):
            if self.left > 0:
                self.left -= 1
                self.history.step()
                if self.rng.random() < 0.4:
                    self.rng.choice(self.servers).round()
                if self.rng.random() < 0.03:
                    self.servers[self.rng.randrange(2)] = _Server(self.history)

    # --- as a connector and a link --------------------------------------------------------------------------------

    async def connect(self) -> _Site:
        self._go_on()
        self._server = self.rng.choice(self.servers)
        self._server.connect()
        return self

    async def receive(self) -> Sequence[Command]:
        while True:
            self._go_on()
            if self.left <= 0:
                self._rounds_at_rest += 1
                _hold(self._rounds_at_rest < 1_000, "the follower does not come to the end of the table")
                self.history.end()
                for server in self.servers:
                    server.round(whole=True)
            elif self.rng.random() < 0.05:
                return ()
            if self._server not in self.servers:  # it was restarted
                return ()
            if self._server.lines:
                count = self.rng.randint(1, len(self._server.lines))
                taken, self._server.lines = self._server.lines[:count], self._server.lines[count:]
                return [parse_line(line[:-1].decode()) for line in taken]
            if self.left <= 0:
                await asyncio.sleep(0)
                return [Ping("1")]

    def send(self, command: Command) -> None: ...

    async def close(self, reason: object = None) -> None:
        self._server.lines = []

    # --- as catch-up ----------------------------------------------------------------------------------------------

    async def writers(self, streams: object) -> Mapping[str, Writers]:
        self._go_on()
        self._fail_now_and_then()
        stored = self.history.stored
        active = [at.position for at in stored.values() if at.state == "active"]
        linear = min(active, default=max((at.position for at in stored.values()), default=1))
        shown = {n: at.position if at.state == "active" else max(at.position, linear) for n, at in stored.items()}
        return {STREAM: Writers(linear, shown)}

    async def given_out(self, streams: object) -> Mapping[str, int]:
        return {}

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[list[FollowedRow], int]:
        self._go_on()
        self._fail_now_and_then()
        rows = self.history.rows(writer, after, upto)
        reached = upto
        if rows and self.rng.random() < 0.3:
            reached = self.rng.choice(rows)[0]
        return [
            FollowedRow(STREAM, name, number, [f"{number}.{row}"]) for number, name, row in rows if number <= reached
        ], reached

    def _fail_now_and_then(self) -> None:
        if self.left > 0 and self.rng.random() < 0.05:
            raise CatchUpError("made up")


class _Log:
    """What one follower, over all its lives, was handed and claimed."""

    def __init__(self, site: _Site, view: View) -> None:
        self.site, self.view = site, view
        self.rows: list[tuple[int, str, int]] = []
        self._unsaved: list[FollowedRow] = []
        self.linear, self.positions = 1, {}
        self.follower: Follower

    def handle(self, rows: Sequence[FollowedRow]) -> None:
        self._unsaved += rows

    def progressed(self) -> None:
        """Rows and cursor are stored together; then the process may die."""
        rng = self.site.rng
        for row in self._unsaved:
            before = self.rows[-1] if self.rows else (0, "", 0)
            number = before[2] + 1 if before[:2] == (row.token, row.instance) else 0
            self.rows.append((row.token, row.instance, number))
        self._unsaved = []
        self.linear = max(self.linear, self.follower.linear(STREAM))
        self.positions |= self.follower.positions().get(STREAM, {})
        self._check_claims()
        if self.site.left > 0 and rng.random() < 0.03:
            raise _Killed
        if self.site.left <= 0 and self.linear >= max(self.site.history.facts, default=1):
            self.follower.finish()

    def _check_claims(self) -> None:
        history = self.site.history
        handed = {number for number, _, _ in self.rows}
        for writer, position in (*self.positions.items(), (None, self.linear)):
            _hold(
                not history.is_open_below(writer, position), f"{writer or 'linear'} at {position} passes what is open"
            )
            missing = {number for number, _, _ in history.rows(writer, 1, position)} - handed
            _hold(not missing, f"{writer or 'linear'} at {position} passes {sorted(missing)[:5]} of the table")

    async def follow(self) -> None:
        while True:
            options = FollowerOptions(
                None, "fuzz", streams=[STREAM], start={STREAM: VectorToken.of(self.linear, self.positions)},
                view=self.view, connector=self.site,
            )  # fmt: skip
            self.follower = Follower(options, self.handle, self.site, self.progressed)
            try:
                await self.follower.run()
                return
            except _Killed:
                self._unsaved = []

    def judge(self) -> None:
        table = self.site.history.rows(None, 1, 10**9)
        if self.view is View.LINEAR:
            _hold(self.rows == table, f"linear: {_difference(self.rows, table)}")
            return
        for writer in {name for _, name, _ in (*table, *self.rows)}:
            own, wanted = ([row for row in rows if row[1] == writer] for rows in (self.rows, table))
            _hold(own == wanted, f"writer {writer}: {_difference(own, wanted)}")


def _difference(got: list[tuple[int, str, int]], wanted: list[tuple[int, str, int]]) -> str:
    return f"got {got[:40]}, the table has {wanted[:40]}"


def _small() -> ExitStack:
    """Small limits, a quiet log."""
    stack = ExitStack()
    for name, value in LIMITS.items():
        stack.enter_context(mock.patch.object(cursors_module, name, value))
    stack.enter_context(mock.patch.object(follower_module, "log", mock.Mock()))
    return stack


def check_history(rng: random.Random) -> None:
    """One history, one follower."""
    site = _Site(rng, rng.randint(5, 120))
    log = _Log(site, rng.choice(list(View)))
    with _small():
        _run(log.follow())
    log.judge()


# --- a server that lies -------------------------------------------------------------------------------------------

WRITERS = ("a", "b", "c", "stand-in", "", "é", "x" * 50)
HUGE = (2**63 - 1, -(2**63), 2**62, 0, -1)


class _Liar(_Site):
    """Says anything, in any order; the table behind it is an honest one."""

    def __init__(self, rng: random.Random, steps: int) -> None:
        super().__init__(rng, steps)
        for _ in range(30):
            self.history.step()

    async def connect(self) -> _Site:
        return self

    async def close(self, reason: object = None) -> None: ...

    async def receive(self) -> Sequence[Command]:
        self.left -= 1
        return () if self.rng.random() < 0.05 else [self._lie() for _ in range(self.rng.randint(1, 8))]

    def _lie(self) -> Command:
        rng = self.rng
        stream = STREAM if rng.random() < 0.9 else "other"
        writer = rng.choice(WRITERS) if rng.random() < 0.95 else f"w{rng.randrange(100)}"
        if rng.random() < 0.5:
            return Position(stream, writer, self._number(), self._number())
        if rng.random() < 0.95:
            return RData(stream, writer, rng.choice([None, self._number()]), ["x" * rng.choice([1, 10, 1000])])
        return rng.choice([Ping(""), Error("\x1b[31m")])

    def _number(self) -> int:
        rng = self.rng
        return rng.choice(HUGE) if rng.random() < 0.03 else rng.randint(0, 60)


def check_lies(rng: random.Random) -> None:
    """One lying server, one follower, small limits."""
    site = _Liar(rng, rng.randint(3, 40))
    known = set(site.history.stored)  # one that is made up is forgotten, and begins anew when it is named again
    last: dict[tuple[str, str], int] = {}

    def handle(rows: Sequence[FollowedRow]) -> None:
        facts = dict.fromkeys((row.stream, row.instance, row.token) for row in rows)
        for stream, writer, token in facts:
            before = last.get((stream, writer), -(2**70))
            _hold(token > before or writer not in known, f"{stream} {writer}: {token} after {before}")
            last[stream, writer] = token

    def progressed() -> None:
        _check_memory(follower)
        if site.left <= 0:
            follower.finish()

    options = FollowerOptions(None, "fuzz", start={STREAM: VectorToken(1)}, view=rng.choice(list(View)), connector=site)
    follower = Follower(options, handle, site, progressed)
    with _small():
        try:
            _run(follower.run())
        except TooManyWriters:
            return


def _check_memory(follower: Follower) -> None:
    """Nothing that the server says is kept beyond the limits."""
    cursors = follower._cursors
    _hold(cursors._batches_bytes <= LIMITS["BATCHES_LIMIT_BYTES"], "keeps more of unfinished facts than it may")
    kept = [batch for state in cursors._streams.values() for batch in state.batches.values()]
    _hold(sum(batch.size for batch in kept) == cursors._batches_bytes, "miscounts what it keeps")
    names = sum(len(state.cursors) for state in cursors._streams.values())
    _hold(names <= 2 * LIMITS["NAMES_LIMIT"], "keeps writers without end")
    above = max((len(state.facts_above) for state in cursors._streams.values()), default=0)
    _hold(above <= LIMITS["FACTS_ABOVE_LIMIT"], "keeps facts above the linear position without end")


# --- the linear view ----------------------------------------------------------------------------------------------


def check_linear_view(rng: random.Random) -> None:
    """Facts come in any order, some never do and are marked as missed: all are handed out once, ascending."""
    table = sorted(rng.sample(range(2, 80), rng.randint(0, 40)))
    limit = rng.randint(1, 12)
    view, linear, out = LinearView(1, limit), 1, []
    waiting = rng.sample(table, len(table))
    while linear < 80:
        for _ in range(rng.randint(0, 5)):
            if waiting:
                _receive(view, waiting.pop(), rng)
        linear = min([*waiting, linear + rng.randint(0, 9) + 1]) - 1 if waiting else linear + rng.randint(0, 9)
        linear = max(linear, view.handed_out)
        while due := view.due(linear):
            reached = rng.randint(due.after + 1, due.upto)
            out += [number for number in table if due.after < number <= reached]
            view.read(reached)
        taken = view.pop(linear)
        out += list(dict.fromkeys(row.token for row in taken))
        _hold(view.buffered_rows <= limit, "keeps more rows than it may")
        _hold(out == [number for number in table if number <= linear], f"at {linear}: {out} of {table}")


def _receive(view: LinearView, number: int, rng: random.Random) -> None:
    if rng.random() < 0.2:
        view.miss(number)
    else:
        view.add([FollowedRow(STREAM, "w", number, [n]) for n in range(rng.choice([1, 1, 3]))])
