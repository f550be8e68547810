"""A process of one shop, in the environment that has its tool: ``python -m script.benchmarks.shops.process``.

It reads commands, a JSON object a line, from its standard input, and writes its answers alike to its standard output. Whatever
else is printed goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from importlib import import_module
from types import ModuleType
from typing import Any

import django
from django.core.management import call_command
from django.db import connections

from script.benchmarks.shops.marks import handled, mark

MANY = 100
"""Facts in a transaction of a backlog, which is not measured."""


class ShopProcess:
    """What the commands do."""

    def __init__(self, shop: ModuleType) -> None:
        self._shop = shop
        self._output = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, answer: dict[str, Any]) -> None:
        """Answers."""
        self._output.write(json.dumps(answer) + "\n")
        self._output.flush()

    def prepare(self) -> None:
        """Makes the tables."""
        call_command("migrate", run_syncdb=True, verbosity=0)
        if after := getattr(self._shop, "after_migrate", None):
            after()
        self.say({})

    def produce(self, first: int, facts: int, threads: int) -> None:
        """Makes facts, one a transaction. Says marks of before and after; goes on after each when it is told to.

        Each thread makes one fact before that, to connect. Connections are closed at the end: the server's CPU can be read until
        then.
        """
        steps = [threading.Barrier(threads + 1) for _ in range(4)]

        def run(number: int) -> None:
            self._shop.pay(*_order(first + number))
            steps[0].wait()
            steps[1].wait()
            for n in range(first + threads + number, first + facts, threads):
                self._shop.pay(*_order(n))
            steps[2].wait()
            steps[3].wait()
            connections.close_all()

        running = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
        for thread in running:
            thread.start()
        steps[0].wait()
        self._say_and_wait({"facts": facts - threads})
        before = mark()
        steps[1].wait()
        steps[2].wait()
        self._say_and_wait({"before": before, "after": mark()})
        steps[3].wait()
        for thread in running:
            thread.join()

    def _say_and_wait(self, answer: dict[str, Any]) -> None:
        self.say(answer)
        sys.stdin.readline()

    def backlog(self, first: int, facts: int) -> None:
        """Makes facts, many a transaction."""
        for begin in range(first, first + facts, MANY):
            self._shop.pay_many([_order(n) for n in range(begin, min(begin + MANY, first + facts))])
        self.say({})

    def pace(self, first: int, facts: int, per_second: float, together: int) -> None:
        """Makes facts at a steady pace, so many in a transaction. Says when the commit of each was known."""
        before, committed = mark(), {}
        for n in range(0, facts, together):
            time.sleep(max(0.0, before["at"] + n / per_second - time.monotonic()))
            orders = [_order(first + m) for m in range(n, min(n + together, facts))]
            if together == 1:
                self._shop.pay(*orders[0])
            else:
                self._shop.pay_many(orders)
            committed.update(dict.fromkeys((order[0] for order in orders), time.monotonic()))
        self.say({"cpu": time.process_time() - before["cpu"], "times": committed})

    def handle(self, until: list[int]) -> None:
        """Handles until the process is ended."""
        self.say(mark())
        handled.begin(until, self.say)
        self._shop.handle()

    def run(self) -> None:
        """Does what it is asked to until its input ends."""
        self.say({})
        while line := sys.stdin.readline():
            command = json.loads(line)
            getattr(self, command.pop("do"))(**command)


def _order(number: int) -> tuple[str, int]:
    return f"order {number}", number % 1000


if __name__ == "__main__":
    django.setup()
    ShopProcess(import_module(f"script.benchmarks.shops.{os.environ['SHOP']}.shop")).run()
