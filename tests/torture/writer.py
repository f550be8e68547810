"""A writer process: several threads that append through the public API, in every way a program may.

Batches of all sizes, transactions that are rolled back as a whole or to a savepoint, that sleep, that reserve and do not
write, facts of several rows, frozen snapshots, transactions begun by hand, plain SQL. Now and then the whole process takes
another name, with its threads at work; other processes may have the same. What it did stands in its log
(``tests.torture.logs``).

Ends on SIGTERM as a program should, after its transactions.
"""

from __future__ import annotations

import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tests.torture.logs import LineLog, checksum
from tests.torture.streams import STREAMS

__all__ = ["Writer", "WriterOrders", "main"]


@dataclass(frozen=True, slots=True)
class WriterOrders:
    """What one writer process is to do."""

    names: Sequence[str]
    """The first is taken at the start, another one at every change of name."""
    log: str
    seed: int
    threads: int = 3
    pause_seconds: float = 0.05
    """Average pause of a thread between two transactions."""
    rename_seconds: float = 10.0
    """Average time under one name."""
    largest_batch: int = 500


class _Undo(Exception):
    """Rolls a block back."""


class Writer:
    """The threads of one process."""

    def __init__(self, orders: WriterOrders) -> None:
        self.orders = orders
        self.log = LineLog(Path(orders.log))
        self.stopping = threading.Event()
        #: Not ``stopping`` itself: ``set`` in a handler would wait for the lock that ``wait`` of the main thread may hold.
        self.signals: SimpleQueue[int] = SimpleQueue()

    def run(self) -> None:
        """Until a signal comes."""
        from streams.writing.name import use_instance

        use_instance(self.orders.names[0])
        threads = [threading.Thread(target=self._work, args=(n,)) for n in range(self.orders.threads)]
        for thread in threads:
            thread.start()
        self._rename_now_and_then()
        for thread in threads:
            thread.join()

    def _rename_now_and_then(self) -> None:
        """While the threads append."""
        from streams.writing.name import use_instance

        rng = random.Random(f"{self.orders.seed} names")
        while not self.stopping.is_set():
            try:
                self.signals.get(timeout=rng.expovariate(1 / self.orders.rename_seconds))
                self.stopping.set()
            except Empty:
                use_instance(rng.choice(self.orders.names))

    def _work(self, number: int) -> None:
        from django.db import connections

        rng = random.Random(f"{self.orders.seed} thread {number}")
        ways = Transactions(rng, self.log, self.orders.largest_batch)
        while not self.stopping.is_set():
            if not self._guarded(ways.one):
                self._guarded(connections.close_all)
                self.stopping.wait(0.05)
            if self.orders.pause_seconds:
                self.stopping.wait(rng.expovariate(1 / self.orders.pause_seconds))
        self._guarded(connections.close_all)

    def _guarded(self, work: Callable[[], object]) -> bool:
        """Whether it went well; errors that a writer must expect are counted, others are noted as such."""
        from django.db import Error

        from streams.errors import StreamError

        try:
            work()
        except (StreamError, Error) as error:
            self.log.write(f"R {type(error).__name__}")
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, the verdict is to know it
            trace = " ".join(" ".join(traceback.format_exception(error)[-6:]).split())
            self.log.write(f"E {type(error).__module__}.{trace[-1500:]}")
            return False
        return True


class Transactions:
    """The ways to append, chosen at random; one thread's."""

    def __init__(self, rng: random.Random, log: LineLog, largest_batch: int) -> None:
        self._rng, self._log, self._largest_batch = rng, log, largest_batch
        self._number = 0
        self._sent: list[tuple[str, int]] = []

    def one(self) -> None:
        """One transaction."""
        ways: dict[Callable[[], None], int] = {
            self._plain: 30, self._sql: 8, self._one_message: 22, self._sleeping: 8, self._rolled_back: 10, self._savepoint: 8,
            self._several_reservations: 6, self._frozen: 4, self._by_hand: 4,
        }  # fmt: skip
        way = self._rng.choices(list(ways), list(ways.values()))[0]
        self._sent = []
        try:
            way()
        except _Undo:
            return
        for stream, first in self._sent:
            self._log.write(f"D {stream} {first}")

    # --- the ways -------------------------------------------------------------------------------------------------

    def _plain(self) -> None:
        from django.db import transaction

        with transaction.atomic():
            ids = self._append()
            self._send(ids)

    def _sql(self) -> None:
        """As a program that knows nothing of us: nobody is named, and nobody is told."""
        from django.db import connection, transaction

        name = self._rng.choice(list(STREAMS))
        stream, number = STREAMS[name], self._rng.randint(1, 5)
        values = [value for _ in range(number) for value in self._fact_values(name)]
        row = f"({', '.join(['%s'] * len(stream.columns))})"
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {stream.table} ({', '.join(stream.columns)}) VALUES {', '.join([row] * number)} "
                "RETURNING stream_id", values)  # fmt: skip
            ids = [given for (given,) in cursor.fetchall()]
            time.sleep(self._rng.choice([0.0, 0.0, 0.05]))
            self._send({name: ids})

    def _one_message(self) -> None:
        """Without a transaction of the caller's: IDs, rows and commit come and go in one message."""
        from streams import registry

        stream, facts = self._new_facts()
        columns = STREAMS[stream].columns
        sums = [checksum([getattr(fact, column) for column in columns]) for fact in facts]
        now = time.monotonic()
        self._log.write(f"I {now:.6f} {stream} {' '.join(map(str, sums))}")
        ids = registry.get(stream).append(*facts)
        self._sent = [(stream, ids[0])]
        self._log.write(f"S {now:.6f} {stream} {' '.join(map(str, ids))}")

    def _sleeping(self) -> None:
        from django.db import transaction

        with transaction.atomic():
            ids = self._append()
            time.sleep(min(self._rng.expovariate(1 / 0.15), 3.0))
            self._send(ids)

    def _rolled_back(self) -> None:
        from django.db import transaction

        with transaction.atomic():
            self._append()
            time.sleep(self._rng.choice([0.0, 0.0, 0.05]))
            raise _Undo

    def _savepoint(self) -> None:
        """Facts inside a savepoint that is rolled back, with facts that stay before and behind.

        When the connection is gone by then, Django rolls the whole transaction back without an error.
        """
        from django.db import transaction

        with transaction.atomic():
            ids = self._append() if self._rng.random() < 0.7 else {}
            try:
                with transaction.atomic():
                    self._append()
                    raise _Undo
            except _Undo:
                if (
                    transaction.get_rollback()
                ):  # the rollback failed with the connection, and Django keeps that to itself
                    raise
            if not ids or self._rng.random() < 0.5:
                ids = _joined(ids, self._append())
            self._send(ids)

    def _several_reservations(self) -> None:
        """Blocks inside one another; IDs that stay unused; facts of several rows, written in any order."""
        from django.db import transaction

        from streams import registry

        with transaction.atomic():
            first = self._append()
            stream = self._rng.choice(list(STREAMS))
            with registry.get(stream).reserve(self._rng.randint(1, 20)) as reservation:
                used = [number for number in reservation.ids if self._rng.random() < 0.5]
                self._rng.shuffle(used)
                for number in used:
                    rows = [self._fact(stream, stream_id=number) for _ in range(self._rng.randint(1, 3))]
                    reservation.write(*rows)
            self._send(_joined(first, {stream: used}))

    def _frozen(self) -> None:
        """With a snapshot that was taken before the reservation."""
        from django.db import connection, transaction

        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("SELECT count(*) FROM streams_streamposition")
            self._send(self._append())

    def _by_hand(self) -> None:
        """Without ``atomic``: Django calls no hook at this COMMIT."""
        from django.db import connection, transaction

        transaction.set_autocommit(False)
        try:
            self._send(self._append())
            transaction.commit()
        except BaseException:
            connection.close()
            raise
        transaction.set_autocommit(True)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _append(self) -> dict[str, list[int]]:
        """Facts of one stream: its IDs."""
        from streams import registry

        stream, facts = self._new_facts()
        return {stream: registry.get(stream).append(*facts)}

    def _new_facts(self) -> tuple[str, list[Any]]:
        few = min(self._largest_batch, self._rng.choices([5, 50, self._largest_batch], [70, 25, 5])[0])
        stream = self._rng.choice(list(STREAMS))
        return stream, [self._fact(stream) for _ in range(self._rng.randint(1, few))]

    def _fact_values(self, stream: str) -> list[Any]:
        fact = self._fact(stream)
        return [getattr(fact, column) for column in STREAMS[stream].columns]

    def _fact(self, stream: str, **more: int) -> Any:
        self._number += 1
        return STREAMS[stream].fact(f"{self._rng.getrandbits(40):x} {self._number}", **more)

    def _send(self, ids: Mapping[str, Sequence[int]]) -> None:
        self._sent = [(stream, numbers[0]) for stream, numbers in ids.items() if numbers]
        now = time.monotonic()
        for stream, numbers in ids.items():
            if numbers:
                self._log.write(f"S {now:.6f} {stream} {' '.join(map(str, numbers))}")


def _joined(one: Mapping[str, list[int]], other: Mapping[str, list[int]]) -> dict[str, list[int]]:
    return {stream: one.get(stream, []) + other.get(stream, []) for stream in (*one, *other)}


def main(orders: dict[str, Any]) -> None:
    """The whole life of a writer process."""
    given = WriterOrders(**orders)
    writer = Writer(given)
    signal.signal(signal.SIGTERM, lambda number, _: writer.signals.put(number))
    writer.run()
