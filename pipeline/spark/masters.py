"""Spark masters: which ones may be named, whether one answers, by which address executors reach us (driver, no Django).

``local``, ``local[2]``, ``local[*]``, ``spark://HOST:PORT[,HOST:PORT…]``, ``yarn``, ``k8s://…``. Spark Connect (``sc://``)
is none: a job ships its code and cancels its tasks through the driver's own context.
"""

from __future__ import annotations

import argparse
import re
import socket
from contextlib import suppress

from pipeline.errors import MasterAway, UnusableArguments

__all__ = [
    "addresses_of",
    "check_master",
    "check_master_answers",
    "driver_address",
    "given_master",
    "is_local",
    "retrying",
]

_LOOPBACK = "127.0.0.1"
_ANSWER_SECONDS = 5.0
_TASK_TRIES = 4
_FORMS = re.compile(
    r"local|local\[(\*|[1-9][0-9]*)(,\s*[1-9][0-9]*)?\]|yarn|k8s://\S+"
    r"|spark://(\[[0-9a-fA-F:]+\]|[\w.-]+):[0-9]{1,5}(,(\[[0-9a-fA-F:]+\]|[\w.-]+):[0-9]{1,5})*"
)


def check_master(master: str) -> str:
    """The master as it is; raises ``UnusableArguments`` for what Spark would only answer with a stack trace."""
    if not _FORMS.fullmatch(master) or any(not 0 < port < 2**16 for _, port in addresses_of(master)):
        raise UnusableArguments(
            f"{master!r} is no Spark master. Write local[CORES], local[*], spark://HOST:PORT, yarn or k8s://URL."
        )
    return master


def given_master(text: str) -> str:
    """The same as the type of a command's ``--master``: what is none is told before anything begins, with status 2."""
    try:
        return check_master(text)
    except UnusableArguments as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def is_local(master: str) -> bool:
    """Whether the executors are threads of the driver's own JVM."""
    return master.startswith("local")


def retrying(master: str) -> str:
    """The master, told to try a task again whose Python worker was killed: clusters do that, local ones only when asked.

    A number of tries that was given stays.
    """
    if master == "local":
        return f"local[1,{_TASK_TRIES}]"
    return f"{master[:-1]},{_TASK_TRIES}]" if is_local(master) and "," not in master else master


def addresses_of(master: str) -> list[tuple[str, int]]:
    """Host and port of every master of a standalone cluster; none for other kinds."""
    if not master.startswith("spark://"):
        return []
    pairs = (address.rsplit(":", 1) for address in master.removeprefix("spark://").split(","))
    return [(host.strip("[]"), int(port)) for host, port in pairs]


def check_master_answers(master: str, seconds: float = _ANSWER_SECONDS) -> None:
    """Raises ``MasterAway`` when no master of a standalone cluster takes a connection; Spark itself would try for a minute."""
    failures = []
    for host, port in addresses_of(master):
        try:
            socket.create_connection((host, port), seconds).close()
        except OSError as error:
            failures.append(f"{host}:{port}: {error}")
        else:
            return
    if failures:
        raise MasterAway(
            f"No Spark master answers at {master} ({'; '.join(failures)}). "
            "Start one, or leave --master out to work on this machine."
        )


def driver_address(master: str) -> str | None:
    """The address of this machine that faces the cluster, for the executors to call back; None: Spark is to find it.

    Nothing is sent. A master on this machine gets loopback, so nothing listens outside.
    """
    if is_local(master):
        return _LOOPBACK
    for host, port in addresses_of(master):
        with suppress(OSError):  # a name that is not known now: the next master, else Spark's own choice
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)
                return str(probe.getsockname()[0])
    return None
