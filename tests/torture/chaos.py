"""What happens to whom, and when: a seeded schedule of deaths, freezes and bad networks.

The seed decides the order of events, the times between them and their victims among those that live; it cannot decide how
far each process has got by then. So a seed that failed once is worth trying again, many times.
"""

from __future__ import annotations

import heapq
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from tests.support.proxy import Proxy
from tests.torture.processes import Running
from tests.torture.site import Site

__all__ = ["Chaos", "Victims"]


class Victims(Protocol):
    """Whom chaos may touch; whoever was killed is replaced by the run itself."""

    site: Site
    proxies: list[Proxy]
    server_ports: list[int]

    def living(self, role: str) -> list[Running]:
        """The processes of a role that run."""


class Chaos:
    """Call `step` often."""

    def __init__(self, victims: Victims, rng: random.Random, mean_seconds: float) -> None:
        self.done: Counter[str] = Counter()
        self._victims, self._rng, self._mean_seconds = victims, rng, mean_seconds
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._next = time.monotonic() + mean_seconds
        self._next_server_death = time.monotonic() + 8
        self._events: dict[Callable[[], bool], int] = {
            self._kill_writer: 10, self._stop_writer: 8, self._freeze_writer: 6,
            self._kill_server: 8, self._stop_server: 3, self._freeze_server: 3,
            self._kill_follower: 10, self._freeze_follower: 4,
            self._end_backend: 12,
            self._cut: 20, self._stall: 8, self._delay: 8, self._move: 10,
        }  # fmt: skip

    def step(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()
        if now >= self._next_server_death:
            self._next_server_death = now + self._rng.uniform(10, 16)
            self._kill_postgres()
        if now >= self._next:
            self._next = now + self._rng.expovariate(1 / self._mean_seconds)
            event = self._rng.choices(list(self._events), list(self._events.values()))[0]
            if event():
                self.done[event.__name__.strip("_").replace("_", " ")] += 1

    def end(self) -> None:
        """Undo what would have been undone later: nothing stays frozen or stalled."""
        while self._later:
            heapq.heappop(self._later)[2]()

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._count), work))

    # --- processes ------------------------------------------------------------------------------------------------

    def _signal(self, role: str, number: signal.Signals) -> bool:
        living = self._victims.living(role)
        if living:
            self._rng.choice(living).send(number)
        return bool(living)

    def _freeze(self, role: str, longest_seconds: float) -> bool:
        living = self._victims.living(role)
        if not living:
            return False
        victim = self._rng.choice(living)
        victim.send(signal.SIGSTOP)
        self._after(self._rng.uniform(0.1, longest_seconds), lambda: victim.send(signal.SIGCONT))
        return True

    def _kill_writer(self) -> bool:
        return self._signal("writer", signal.SIGKILL)

    def _stop_writer(self) -> bool:
        return self._signal("writer", signal.SIGTERM)

    def _freeze_writer(self) -> bool:
        """Its open transactions hold their streams back as long."""
        return self._freeze("writer", 4.0)

    def _kill_server(self) -> bool:
        return self._signal("server", signal.SIGKILL)

    def _stop_server(self) -> bool:
        return self._signal("server", signal.SIGTERM)

    def _freeze_server(self) -> bool:
        return self._freeze("server", 6.0)

    def _kill_follower(self) -> bool:
        return self._signal("follower", signal.SIGKILL)

    def _freeze_follower(self) -> bool:
        return self._freeze("follower", 6.0)

    # --- PostgreSQL -----------------------------------------------------------------------------------------------

    def _end_backend(self) -> bool:
        """One connection ends in order, as by ``pg_terminate_backend``."""
        return self._victims.site.signal_backend(self._rng, signal.SIGTERM)

    def _kill_postgres(self) -> None:
        if self._rng.random() < 0.5:
            if self._victims.site.kill_postmaster():
                self.done["kill postmaster"] += 1
        elif self._victims.site.signal_backend(self._rng, signal.SIGKILL):
            self.done["kill backend"] += 1

    # --- networks -------------------------------------------------------------------------------------------------

    def _cut(self) -> bool:
        self._rng.choice(self._victims.proxies).cut()
        return True

    def _stall(self) -> bool:
        """Nothing comes for a while; longer than the ping timeout at times."""
        proxy = self._rng.choice(self._victims.proxies)
        proxy.stall()
        self._after(self._rng.uniform(0.2, 7.0), lambda: proxy.stall(False))
        return True

    def _delay(self) -> bool:
        proxy = self._rng.choice(self._victims.proxies)
        proxy.delay(self._rng.uniform(0.001, 0.1))
        self._after(self._rng.uniform(1.0, 6.0), lambda: proxy.delay(0.0))
        return True

    def _move(self) -> bool:
        """The same follower, another server."""
        proxy = self._rng.choice(self._victims.proxies)
        proxy.send_to(self._rng.choice(self._victims.server_ports))
        proxy.cut()
        return True
