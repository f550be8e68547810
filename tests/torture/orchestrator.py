"""One torture run: start everybody, let chaos in, let everything come to rest, and hold the logs against the table."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port
from tests.support.proxy import Proxy, proxy_to
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.torture.chaos import Chaos
from tests.torture.follower import FollowerOrders
from tests.torture.logs import lines_of, seen_in
from tests.torture.processes import Running
from tests.torture.progress import FollowerTail, ProgressLine, WriterTail
from tests.torture.site import Site
from tests.torture.verdict import Commits, Violation, check_follower, check_writers, read_writer_lines
from tests.torture.writer import WriterOrders

__all__ = ["PLANTED", "Options", "Report", "Torture"]

#: The fault of ``tests.torture.holds`` that no guard refuses, planted here to see that the logs show it.
PLANTED = ("no lock",)
VIEWS = ("writer", "linear")
#: A server that is started while PostgreSQL is away says so and ends; its supervisor, here, starts it again.
NO_DATABASE = "cannot be used: "
#: Judging while it runs costs time of its own; only runs that are to fail do it.
JUDGE_EACH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """How many, how long, how bad."""

    seed: int
    seconds: float = 60.0
    facts: int = 0
    """End when so many are committed, instead of after `seconds`."""
    writers: int = 4
    threads: int = 3
    pause_seconds: float = 0.05
    rename_seconds: float = 10.0
    servers: int = 3
    followers: int = 8
    chaos_mean_seconds: float = 0.5
    """Average time between two events; 0 for none at all."""
    plant: str = ""
    ends_when_noticed: bool = False
    rest_seconds: float = 90.0
    """How long everything may take to come to rest."""
    shows_progress: bool = False


@dataclass(slots=True)
class Report:
    """What came out."""

    seed: int
    facts: int = 0
    rows_seen: int = 0
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    refused: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    refused_starts: int = 0
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        told = ", ".join(f"{count} x {name}" for name, count in self.events.most_common())
        refused = ", ".join(f"{count} {name}" for name, count in sorted(self.refused.items()))
        lines = [
            f"seed {self.seed}: {self.facts:,} facts in {self.seconds:.0f} s, {self.rows_seen:,} rows followed over "
            f"{self.connections} connections; events: {told or 'none'}; "
            f"servers started without PostgreSQL: {self.refused_starts}; appends refused or cut: {refused or 'none'}",
            *(f"  {violation}" for violation in self.violations),
        ]
        return "\n".join([*lines, "FAILED" if self.violations else "all logs equal the table"])


@dataclass(slots=True)
class _Place:
    """A place that is never empty: whoever dies in it is replaced."""

    role: str
    name: str
    begin: Callable[[int], Running]
    running: Running
    lives: int = 1
    had_ends: list[Running] = field(default_factory=list)


class Torture:
    """One run on a site."""

    def __init__(self, site: Site, options: Options, folder: Path) -> None:
        self.site, self.options, self.folder = site, options, folder
        self.report = Report(options.seed)
        self.proxies: list[Proxy] = []
        self.server_ports: list[int] = []
        self._rng = random.Random(options.seed)
        self._places: list[_Place] = []
        self._writer_tails: list[WriterTail] = []
        self._follower_tails: dict[str, FollowerTail] = {}
        self._fallen: set[str] = set()
        self._first: dict[str, int] = {}
        self._facts = 0
        self._progress = ProgressLine(options.seconds, options.facts, is_shown=options.shows_progress)

    def run(self) -> Report:
        """Everything; never raises for what the product did wrong, that stands in the report."""
        self.folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        self._first = self.site.last_ids()
        with ExitStack() as stack:
            stack.enter_context(self.site.planted(self.options.plant))
            stack.callback(self._kill_all)
            self._start(stack)
            self._torment()
            self._come_to_rest()
        self.report.seconds = time.monotonic() - begun
        self.report.connections = sum(proxy.connections for proxy in self.proxies)
        self._judge(is_over=not self._is_noticed())
        return self.report

    def living(self, role: str) -> list[Running]:
        return [place.running for place in self._places if place.role == role and place.running.alive()]

    # --- start ----------------------------------------------------------------------------------------------------

    def _start(self, stack: ExitStack) -> None:
        options = self.options
        self.server_ports = [free_port() for _ in range(options.servers)]
        for number, port in enumerate(self.server_ports):
            self._fill("server", f"server-{number}", lambda _, n=number, p=port: self._server(n, p))
        for number in range(options.followers):
            proxy = stack.enter_context(proxy_to(self.server_ports[number % options.servers]))
            self.proxies.append(proxy)
            self._fill("follower", f"follower-{number}", lambda _, n=number, p=proxy.port: self._follower(n, p))
        for number in range(options.writers):
            self._fill("writer", f"writer-{number}", lambda life, n=number: self._writer(n, life))

    def _fill(self, role: str, name: str, begin: Callable[[int], Running]) -> None:
        self._places.append(_Place(role, name, begin, begin(0)))

    def _server(self, number: int, port: int) -> Running:
        return self.site.nursery.start("server", f"server-{number}", {"port": port})

    def _follower(self, number: int, port: int) -> Running:
        name = f"follower-{number}"
        orders = FollowerOrders(name, port, VIEWS[number % 2], str(self._log(name)), self._first)
        self._follower_tails.setdefault(name, FollowerTail(self._log(name)))
        return self.site.nursery.start("follower", name, orders)

    def _writer(self, number: int, life: int) -> Running:
        options = self.options
        path = self._log(f"writer-{number}-{life}")
        self._writer_tails.append(WriterTail(path))
        names = [f"w{number}", "pool", f"w{number}-other", f"guest-{number}-{life}"]
        self._rng.shuffle(names)
        orders = WriterOrders(
            names=names, log=str(path), seed=self._rng.getrandbits(32), threads=options.threads,
            pause_seconds=options.pause_seconds, rename_seconds=options.rename_seconds,
        )  # fmt: skip
        return self.site.nursery.start("writer", f"writer-{number}", orders)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    # --- torment --------------------------------------------------------------------------------------------------

    def _torment(self) -> None:
        options, begun = self.options, time.monotonic()
        judged = begun
        chaos = Chaos(self, self._rng, options.chaos_mean_seconds or 1e9)
        while not self._is_enough(begun):
            if options.chaos_mean_seconds:
                chaos.step()
            self._replace_the_dead()
            self._count(chaos)
            if options.ends_when_noticed and time.monotonic() > judged + JUDGE_EACH_SECONDS:
                self._judge(is_over=False)
                judged = time.monotonic()
            time.sleep(0.02)
        chaos.end()
        self.report.events = chaos.done

    def _is_enough(self, begun: float) -> bool:
        if self._is_noticed():
            return True
        wanted = self.options.facts
        return self._facts >= wanted if wanted else time.monotonic() > begun + self.options.seconds

    def _is_noticed(self) -> bool:
        return self.options.ends_when_noticed and bool(self.report.violations)

    def _replace_the_dead(self) -> None:
        for place in self._places:
            if place.running.alive():
                continue
            self._note_end(place)
            place.lives += 1
            place.running = place.begin(place.lives)

    def _note_end(self, place: _Place) -> None:
        """Nobody may end without having been told to."""
        words = place.running.last_words().strip()
        if place.role == "server" and NO_DATABASE in words[-600:]:
            self.report.refused_starts += 1
        elif not place.running.was_told_to_end and place.name not in self._fallen:
            self._fallen.add(place.name)
            self.report.violations.append(Violation("ended by itself", place.name, words[-600:] or "no word"))
        place.running.close()

    def _count(self, chaos: Chaos) -> None:
        self._facts += sum(tail.new_facts() for tail in self._writer_tails)
        slowest = min((sum(tail.linear().values()) for tail in self._follower_tails.values()), default=0)
        deaths = sum(count for name, count in chaos.done.items() if name.startswith("kill"))
        what = f"slowest follower at {slowest:,}  {sum(chaos.done.values())} events, {deaths} kills"
        self._progress.tell(self._facts, what)

    # --- rest -----------------------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        """Writers end in order; then every follower must come to the end of the table."""
        deadline = time.monotonic() + self.options.rest_seconds
        self._end("writer", 40)
        self.report.facts = self._facts + sum(tail.new_facts() for tail in self._writer_tails)
        if self._is_noticed():
            return
        self._progress.tell(self.report.facts, "coming to rest", at_once=True)
        wait_until(self.site.is_up, what="PostgreSQL to come back")
        head = dict(self._first)
        for stream, number in self.site.facts(self._first):
            head[stream] = max(head[stream], number)
        while behind := self._behind(head):
            if time.monotonic() > deadline:
                self.report.violations += [
                    Violation(
                        "does not come to the end", name, f"at {at}, the table ends at {head}; {self._positions()}"
                    )
                    for name, at in behind.items()
                ]
                break
            self._replace_the_dead_but_writers()
            time.sleep(0.05)
        self._end("follower", 30)

    def _behind(self, head: Mapping[str, int]) -> dict[str, dict[str, int]]:
        places = {name: tail.linear() for name, tail in self._follower_tails.items()}
        return {name: at for name, at in places.items() if any(at.get(stream, 0) < end for stream, end in head.items())}

    def _replace_the_dead_but_writers(self) -> None:
        for place in self._places:
            if place.role != "writer" and not place.running.alive():
                self._note_end(place)
                place.lives += 1
                place.running = place.begin(place.lives)

    def _positions(self) -> str:
        with self.site.cursor() as cursor:
            cursor.execute("SELECT stream, instance_name, state, position FROM streams_streamposition ORDER BY 1, 2")
            return ", ".join(" ".join(map(str, row)) for row in cursor.fetchall())

    def _end(self, role: str, seconds: float) -> None:
        living = self.living(role)
        for running in living:
            running.send(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for running in living:
            if not running.wait(deadline - time.monotonic()):
                running.send(signal.SIGUSR1)
                running.wait(2)
                self.report.violations.append(Violation("does not end when told", running.name, running.last_words()))
                running.send(signal.SIGKILL)

    def _kill_all(self) -> None:
        for place in self._places:
            place.running.send(signal.SIGKILL)
            place.running.wait(DEADLINE_SECONDS)
            place.running.close()

    # --- judge ----------------------------------------------------------------------------------------------------

    def _judge(self, *, is_over: bool) -> None:
        wait_until(self.site.is_up, what="PostgreSQL to come back")
        table, commits = self.site.facts(self._first), Commits()
        for path in sorted(self.folder.glob("writer-*.log")):
            read_writer_lines(lines_of(path), commits)
        commits.find_intended(table)
        found = check_writers(table, commits) if is_over else []
        self.report.rows_seen = 0
        for number, name in enumerate(self._follower_tails):
            steps = self._counted(name)
            is_linear = VIEWS[number % 2] == "linear"
            found += check_follower(name, steps, table, commits, is_linear=is_linear, is_over=is_over)
        self.report.refused = dict(commits.refused)
        self.report.violations += found

    def _counted(self, name: str) -> Iterator:
        path = self._log(name)
        for seen in seen_in(path) if path.exists() else ():
            self.report.rows_seen += len(seen.rows)
            yield seen
