"""``manage.py``, or Python, in processes that are forked from one in which Django is loaded: a twentieth of the CPU.

Variables are read when Django is loaded, so there is one such process for each environment that is asked for more than once;
those of ``_LATE``, which our own code reads again and again, are set after the fork. A test that is about the start itself is
marked ``cold_start``: its processes have interpreters of their own.

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
from runpy import run_module
from typing import Any

__all__ = ["WARM", "WarmStarts", "cold_start"]

_PROJECT = Path(__file__).resolve().parents[2]
_CHANGES_EVERYWHERE = ("PYTEST_CURRENT_TEST",)
_LATE = ("SKEW_SECONDS",)
#: What servers import beside the site's apps, but for the reactor.
_LOADED = (
    "autobahn.twisted.websocket", "replsite.urls", "streams.replication.server.consumer", "twisted.internet.asyncioreactor",
    "twisted.web.http",
)  # fmt: skip
_OF_PYTHON = ("-m", "-c")
_PR_SET_CHILD_SUBREAPER = 36
_MOST_FORKING = 4  # each has 100 MB
_REQUEST_BYTES = 1_000_000


def cold_start(arguments: tuple[str, ...], environment: Mapping[str, str], **more: Any) -> subprocess.Popen[str]:
    """``manage.py ARGUMENTS`` in an interpreter of its own, in a session of its own; ``more`` is Popen's.

    Arguments that begin with ``-m`` or ``-c`` are Python's own.
    """
    command = [sys.executable, *([] if arguments[0] in _OF_PYTHON else ["manage.py"]), *arguments]
    more = {"cwd": _PROJECT, "start_new_session": True, **more}
    return subprocess.Popen(command, env=environment, text=True, **more)


class WarmStarts:
    """Those that fork, one for an environment that is asked for again; the one that was not asked for longest goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: set[tuple[tuple[str, str], ...]] = set()
        self._forking: dict[tuple[tuple[str, str], ...], _Forking] = {}

    def popen(self, arguments: tuple[str, ...], environment: Mapping[str, str], **more: Any) -> subprocess.Popen[str]:
        """``manage.py ARGUMENTS`` forked, but for what is asked for once: that is a cold start, of the same arguments."""
        others = {*_CHANGES_EVERYWHERE, *_LATE}
        key = tuple(sorted((name, value) for name, value in environment.items() if name not in others))
        with self._lock:
            if key in self._asked and more.keys() <= {"stdin", "stdout", "stderr"}:
                late = {name: environment[name] for name in _LATE if name in environment}
                return _Forked(list(arguments), forking=self._forking_in(key), late=late, text=True, **more)
            self._asked.add(key)
        return cold_start(arguments, environment, **more)

    def _forking_in(self, key: tuple[tuple[str, str], ...]) -> _Forking:
        found = self._forking[key] = self._forking.pop(key, None) or _Forking(dict(key))
        if len(self._forking) > _MOST_FORKING:
            self._forking.pop(next(iter(self._forking))).close()
        return found

    def close(self) -> None:
        """End what forks; what it has forked lives on."""
        while self._forking:
            self._forking.popitem()[1].close()


class _Forking:
    """The other end of a process that forks; one request at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            number = other.fileno()
            command = [sys.executable, "-c", "from tests.support.warm_start import main; main()", str(number)]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, cwd=_PROJECT, env=environment, pass_fds=[number], **quiet)

    def fork(self, arguments: list[str], late: Mapping[str, str], descriptors: tuple[int, int, int]) -> int:
        """Number of the new process."""
        _adopt_orphans(True)
        try:
            socket.send_fds(self._socket, [json.dumps([arguments, late]).encode()], descriptors)
            answer = self._socket.recv(100)
        finally:
            _adopt_orphans(False)
        if not answer:
            raise AssertionError("the process that forks has ended")
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(20)


class _Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process that another one forks."""

    def __init__(self, command: list[str], *, forking: _Forking, late: Mapping[str, str], **more: Any) -> None:
        self._forking, self._late = forking, late
        super().__init__(command, **more)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        stdin, _, _, stdout, _, stderr = pipes = given[9:15]
        own = [stdin, stdout, stderr]
        self.pid = self._forking.fork(args, self._late, tuple(own[n] if own[n] != -1 else n for n in range(3)))
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _adopt_orphans(wanted: bool) -> None:
    """Whether processes below this one become its children when their parents end."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0):
        raise AssertionError("this system cannot hand a process over")


def _wait_for_requests(requests: socket.socket) -> tuple[list[str], dict[str, str]]:
    """Fork for each request; returns its command line and variables in the process that was forked, and nowhere else."""
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
        arguments, late = json.loads(text)
        return arguments, late


def main() -> None:
    """Load Django, then fork; in a forked process be ``manage.py``, or what was asked for."""
    import django

    import manage  # noqa: F401 - loaded before

    requests = socket.socket(fileno=int(sys.argv[1]))
    django.setup()
    for name in _LOADED:
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules  # it belongs to one process, and to its event loop
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arguments, late = _wait_for_requests(requests)
    os.environ.update(late)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _be(arguments)


def _be(arguments: list[str]) -> None:
    import manage

    match arguments:
        case ["-m", name, *rest]:
            sys.argv = [name, *rest]
            run_module(name, run_name="__main__", alter_sys=True)
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case _:
            sys.argv = ["manage.py", *arguments]
            manage.main()


#: Those of this process; the session ends what forks.
WARM = WarmStarts()
