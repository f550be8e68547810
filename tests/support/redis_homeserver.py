"""A process of a homeserver on a Redis channel, by Redis' own client: it answers REPLICATE, and publishes facts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from tests.support.redis_server import RedisServer


class RedisHomeserver:
    """One writer of one stream. Each message is a line; a fact of several rows is a batch that ends with its token."""

    def __init__(self, client: redis.Redis, channel: str, stream: str, instance: str, position: int) -> None:
        self._client = client
        self._channel = channel
        self._writer = f"{stream} {instance}"
        self.position = position
        self.answers = 0
        self._in_turn = threading.RLock()

    def answer(self, message: dict[str, Any]) -> None:
        """Says where the writer is, to whoever asks."""
        if message["data"].decode().split() == ["REPLICATE"]:
            with self._in_turn:
                self.tell_position()
                self.answers += 1

    def tell_position(self) -> None:
        with self._in_turn:
            self._say(f"POSITION {self._writer} {self.position} {self.position}")

    def tell_fact(self, token: int, *rows: str) -> None:
        """The rows are JSON."""
        tokens = ["batch"] * (len(rows) - 1) + [str(token)]
        with self._in_turn:
            self._say(*(f"RDATA {self._writer} {one} {row}" for one, row in zip(tokens, rows, strict=True)))
            self.position = token

    def _say(self, *lines: str) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            for line in lines:
                pipeline.publish(self._channel, line)
            pipeline.execute()


@contextmanager
def redis_homeserver(
    server: RedisServer, channel: str, stream: str, instance: str, position: int
) -> Iterator[RedisHomeserver]:
    with redis.Redis(port=server.port, protocol=2) as client, client.pubsub() as heard:
        homeserver = RedisHomeserver(client, channel, stream, instance, position)
        heard.subscribe(**{channel: homeserver.answer})
        thread = heard.run_in_thread(sleep_time=0.01)
        try:
            yield homeserver
        finally:
            thread.stop()
            thread.join()
