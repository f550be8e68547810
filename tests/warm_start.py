"""``manage.py`` in processes that are forked from one in which Django is loaded: a start takes a twentieth of its CPU.

Only in the environment of the session: a process whose variables differ has other settings, and is started as everywhere else.
So is every process of a test that is marked ``cold_start``, which is about the start itself.

A forked process becomes a child of the test's process, which therefore waits for it like for any other. ``main`` is
the one that forks: it reads requests from the socket whose descriptor is its argument, and never opens a connection.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["WarmStart", "cold_start"]

_PROJECT = Path(__file__).resolve().parent.parent
_CHANGES_EVERYWHERE = ("PYTEST_CURRENT_TEST",)
#: What servers import beside the site's apps, but for the reactor.
_LOADED = (
    "autobahn.twisted.websocket", "replsite.urls", "streams.replication.consumer", "twisted.internet.asyncioreactor",
    "twisted.web.http",
)  # fmt: skip
_PR_SET_CHILD_SUBREAPER = 36
_REQUEST_BYTES = 1_000_000


def cold_start(arguments: tuple[str, ...], environment: Mapping[str, str], **more: Any) -> subprocess.Popen[str]:
    """``manage.py ARGUMENTS`` in an interpreter of its own, in a session of its own; ``more`` is Popen's."""
    command = [sys.executable, "manage.py", *arguments]
    more = {"cwd": _PROJECT, "start_new_session": True, **more}
    return subprocess.Popen(command, env=environment, text=True, **more)


class WarmStart:
    """The other end: begins at the first process that it can start."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = _kept(environment)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def popen(self, arguments: tuple[str, ...], environment: Mapping[str, str], **more: Any) -> subprocess.Popen[str]:
        """The same in a process that was forked, where that is the same."""
        if _kept(environment) == self._environment and more.keys() <= {"stdin", "stdout", "stderr"}:
            return _Forked(["manage.py", *arguments], forking=self, text=True, **more)
        return cold_start(arguments, environment, **more)

    def fork(self, arguments: list[str], descriptors: tuple[int, int, int]) -> int:
        """Number of the new process."""
        with self._lock:
            if self._socket is None:
                self._begin()
            assert self._socket is not None
            _adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [json.dumps(arguments).encode()], descriptors)
                answer = self._socket.recv(100)
            finally:
                _adopt_orphans(False)
        if not answer:
            raise AssertionError("the process that forks has ended")
        return int(answer)

    def close(self) -> None:
        """End what forks; what it has forked lives on."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(20)
            self._socket = None

    def _begin(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            number = other.fileno()
            command = [sys.executable, "-c", "from tests.warm_start import main; main()", str(number)]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, cwd=_PROJECT, env=self._environment, pass_fds=[number], **quiet)


class _Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process that another one forks."""

    def __init__(self, command: list[str], *, forking: WarmStart, **more: Any) -> None:
        self._forking = forking
        super().__init__(command, **more)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        stdin, _, _, stdout, _, stderr = pipes = given[9:15]
        own = [stdin, stdout, stderr]
        self.pid = self._forking.fork(args, tuple(own[n] if own[n] != -1 else n for n in range(3)))
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _kept(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _CHANGES_EVERYWHERE}


def _adopt_orphans(wanted: bool) -> None:
    """Whether processes below this one become its children when their parents end."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0):
        raise AssertionError("this system cannot hand a process over")


def _wait_for_requests(requests: socket.socket) -> list[str]:
    """Fork for each request; returns its command line in the process that was forked, and nowhere else."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
        if not text:
            os._exit(0)
        read, write = os.pipe()
        if between := os.fork():
            os.waitpid(between, 0)  # by now the process is the test's child
            requests.send(os.read(read, 100))
            for descriptor in (read, write, *descriptors):
                os.close(descriptor)
            continue
        if number := os.fork():
            os.write(write, str(number).encode())
            os._exit(0)
        os.setsid()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        os.closerange(3, max(write, requests.detach(), *descriptors) + 1)
        return list(json.loads(text))


def main() -> None:
    """Load Django, then fork; in a forked process be ``manage.py``."""
    import django

    import manage

    requests = socket.socket(fileno=int(sys.argv[1]))
    django.setup()
    for name in _LOADED:
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules  # it belongs to one process, and to its event loop
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.argv = _wait_for_requests(requests)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    manage.main()
