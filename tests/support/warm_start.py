"""``manage.py``, or Python, in processes that are forked from one that has loaded what they need: a fraction of the CPU.

Variables are read when Django is loaded. So there are two kinds of processes that fork:

- One has loaded Django, for an environment that is asked for more than once: a twentieth of a start's CPU. Variables that are
  read late are set after the fork: those of ``_LATE``, and those of the settings of streams, which are read when they are
  needed and not when something is loaded (``streams.conf.stream_settings``).
- One has loaded all modules that need no settings, for all environments: a sixth. What is asked for once is forked from it, and
  so is each process of the other kind. Only variables of the site may differ, because libraries may read others when they
  are loaded.

A test that is about the start itself is marked ``cold_start``: its processes have interpreters of their own.

A forked process becomes a child of the test's process, which therefore waits for it like for any other. ``main`` is
the one that forks: it reads requests from the socket that is its standard input, and never opens a connection.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module, reload
from pathlib import Path
from runpy import run_module
from typing import Any

from tests.support.waiting import DEADLINE_SECONDS

__all__ = ["WARM", "WarmStarts", "close_all", "cold_start"]

_DJANGO, _NO_SETTINGS = "Django", "no settings"  # what a process that forks has loaded
_PROJECT = Path(__file__).resolve().parents[2]
_CHANGES_EVERYWHERE = ("PYTEST_CURRENT_TEST",)
_LATE = ("SKEW_SECONDS",)
_SETTINGS = "replsite.settings"
#: Beginnings of the names of variables that no library reads when it is loaded.
_OF_THE_SITE = ("DATABASE_URL", "DJANGO_", "REPLSITE_")
#: What servers import beside the site's apps, but for the reactor.
_LOADED = (
    "autobahn.twisted.websocket", "replsite.site_urls", "streams.replication.server.consumer", "twisted.internet.asyncioreactor",
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
        """``manage.py ARGUMENTS`` forked. A cold start of the same arguments, if a variable of a library differs or other
        options of Popen are given."""
        if not more.keys() <= {"stdin", "stdout", "stderr"}:
            return cold_start(arguments, environment, **more)
        late = {name: environment[name] for name in _late(environment) if name in environment}
        others = {*_CHANGES_EVERYWHERE, *late}
        key = tuple(sorted((name, value) for name, value in environment.items() if name not in others))
        with self._lock:
            if key in self._asked:
                return _Forked(list(arguments), forking=self._forking_in(key), variables=late, text=True, **more)
            self._asked.add(key)
        return _forked_or_cold(arguments, environment, **more)

    def _forking_in(self, key: tuple[tuple[str, str], ...]) -> _Forking:
        found = self._forking[key] = self._forking.pop(key, None) or _Forking(_forked_or_cold, _DJANGO, dict(key))
        if len(self._forking) > _MOST_FORKING:
            self._forking.pop(next(iter(self._forking))).close()
        return found

    def close(self) -> None:
        """End what forks; what it has forked lives on."""
        while self._forking:
            self._forking.popitem()[1].close()


def _late(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that may be set after Django was loaded."""
    return (*_LATE, *_late_settings()) if environment.get("DJANGO_SETTINGS_MODULE") == _SETTINGS else _LATE


@cache
def _late_settings() -> tuple[str, ...]:
    """Names of the settings that only ``stream_settings`` reads, each from the variable of its name."""
    from streams.declared_settings import declared
    from streams.stream_settings import StreamSettings

    # The others of these are part of what is made when the file is read: secrets are masked in logs.
    return tuple(name for name, one, how in declared(StreamSettings) if how.variable == "" and one.repr)


def _read_settings_again(names: Iterable[str]) -> None:
    """Let the settings have what the environment says of them now."""
    from django.conf import settings
    from django.core.signals import setting_changed

    module = reload(import_module(_SETTINGS))
    for name in names:
        setattr(settings, name, getattr(module, name))
        setting_changed.send(sender=None, setting=name, value=getattr(module, name), enter=True)


def _forked_or_cold(arguments: tuple[str, ...], environment: Mapping[str, str], **more: Any) -> subprocess.Popen[str]:
    """Fork from the process without settings, if the environment allows it."""
    if forking := _LIBRARIES.for_environment(environment):
        return _Forked(list(arguments), forking=forking, variables=dict(environment), text=True, **more)
    return cold_start(arguments, environment, **more)


class _Libraries:
    """The process that has loaded what needs no settings. It starts when it is first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forking: _Forking | None = None
        self._variables: dict[str, str] = {}

    def for_environment(self, environment: Mapping[str, str]) -> _Forking | None:
        """Returns the process that forks, or None if a variable differs that a library may have read."""
        with self._lock:
            if self._forking is None:
                self._variables = _of_libraries(os.environ)
                self._forking = _Forking(cold_start, _NO_SETTINGS, {**os.environ, "DJANGO_SETTINGS_MODULE": ""})
            return self._forking if _of_libraries(environment) == self._variables else None

    def close(self) -> None:
        with self._lock:
            if self._forking is not None:
                self._forking.close()
            self._forking = None


def _of_libraries(environment: Mapping[str, str]) -> dict[str, str]:
    others = (*_OF_THE_SITE, *_CHANGES_EVERYWHERE, *_LATE)
    return {name: value for name, value in environment.items() if not name.startswith(others)}


class _Forking:
    """The other end of a process that forks; one request at a time."""

    def __init__(self, begin: Callable[..., subprocess.Popen[str]], what: str, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            command = ("-c", f"from tests.support.warm_start import main; main({what!r})")
            self._process = begin(command, environment, stdin=other, stdout=subprocess.DEVNULL)

    def fork(self, arguments: list[str], variables: Mapping[str, str], descriptors: tuple[int, int, int]) -> int:
        """Number of the new process."""
        with self._lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [json.dumps([arguments, variables]).encode()], descriptors)
                answer = self._socket.recv(100)
            finally:
                _adopt_orphans(False)
        if not answer:
            raise AssertionError("the process that forks has ended")
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(DEADLINE_SECONDS)


class _Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process that another one forks."""

    def __init__(self, command: list[str], *, forking: _Forking, variables: Mapping[str, str], **more: Any) -> None:
        self._forking, self._variables = forking, variables
        super().__init__(command, **more)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        stdin, _, _, stdout, _, stderr = pipes = given[9:15]
        own = [stdin, stdout, stderr]
        self.pid = self._forking.fork(args, self._variables, tuple(own[n] if own[n] != -1 else n for n in range(3)))
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


def main(what: str) -> None:
    """Load what is asked for, then fork; in a forked process be ``manage.py``, or what was asked for."""
    requests = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    if what == _DJANGO:
        _load_all()
    else:
        del os.environ["DJANGO_SETTINGS_MODULE"]
        for name in _without_settings():
            import_module(name)
    assert "twisted.internet.reactor" not in sys.modules  # it belongs to one process, and to its event loop
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arguments, variables = _wait_for_requests(requests)
    if what == _NO_SETTINGS:
        os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if what == _DJANGO and (late := variables.keys() - set(_LATE)):
        _read_settings_again(late)
    try:
        _be(arguments)
    except SystemExit as ended:
        _end(ended.code)
        raise
    _end(0)


def _end(code: str | int | None) -> None:
    """End as Python does, but without taking all modules apart.

    That writes to every page that the fork shares, so that the kernel copies them: most of the CPU of a short command. Returns if
    the output cannot be written; Python then ends in its own way, which says so.
    """
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(AttributeError, OSError, ValueError):  # there is none, it is full, it is closed
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((code or 0) & 0xFF)


def _load_all() -> None:
    import django

    import manage  # noqa: F401 - loaded before

    django.setup()
    for name in _LOADED:
        import_module(name)


def _without_settings() -> list[str]:
    """Names of the modules of a server that can be loaded without settings, in their order.

    A module that cannot must not even be tried in a process that forks: what it did before it failed would stay.
    """
    names = _said_by_a_child(_modules_of_a_server)
    return _said_by_a_child(lambda: [name for name in names if _can_be_loaded(name)])


def _modules_of_a_server() -> list[str]:
    os.environ["DJANGO_SETTINGS_MODULE"] = _SETTINGS
    _load_all()
    return [name for name in sys.modules if name not in ("__main__", _SETTINGS)]


def _can_be_loaded(name: str) -> bool:
    try:
        import_module(name)
    except Exception:  # noqa: BLE001 - Django's for settings, and others for modules that are made, not loaded
        return False
    # A package that cannot be loaded leaves modules of its own behind, but not itself.
    parts = name.split(".")
    return all(".".join(parts[:end]) in sys.modules for end in range(1, len(parts)))


def _said_by_a_child(ask: Callable[[], list[str]]) -> list[str]:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with os.fdopen(write, "w") as said:
            json.dump(ask(), said)
            said.flush()
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        found: list[str] = json.load(told)
    os.waitpid(child, 0)
    return found


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


_LIBRARIES = _Libraries()
#: Those of this process; the session ends what forks.
WARM = WarmStarts()


def close_all() -> None:
    """End what forks, of all environments."""
    WARM.close()
    _LIBRARIES.close()
