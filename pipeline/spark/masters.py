"""Handles Spark masters: checks their syntax and whether a master answers, and finds the driver's address for executors.

Accepted are ``local``, ``local[2]``, ``local[*]``, ``spark://HOST:PORT[,HOST:PORT…]``, ``yarn`` and ``k8s://…``. Spark
Connect (``sc://``) is not accepted: a job ships its code and cancels its tasks through the driver's own context.

Runs in Spark's driver, without Django.
"""

from __future__ import annotations

import argparse
import re
import socket
from contextlib import suppress

from pipeline.errors import MasterAway
from streams.jobs.errors import UnusableArguments

__all__ = [
    "addresses_of",
    "check_master",
    "check_master_answers",
    "driver_address",
    "is_local",
    "master_argument",
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
    """Returns ``master`` unchanged. Raises ``UnusableArguments`` if it is not an accepted master.

    Spark itself answers a wrong master with a stack trace.
    """
    if not _FORMS.fullmatch(master) or any(not 0 < port < 2**16 for _, port in addresses_of(master)):
        raise UnusableArguments(
            f"{master!r} is no Spark master. Write local[CORES], local[*], spark://HOST:PORT, yarn or k8s://URL."
        )
    return master


def master_argument(text: str) -> str:
    """Returns the value of the option ``--master`` after a check. argparse calls this function as the option's type.

    If the value is wrong, argparse ends the command with exit status 2, before any work.
    """
    try:
        return check_master(text)
    except UnusableArguments as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def is_local(master: str) -> bool:
    """Returns true if the executors are threads of the driver's own JVM."""
    return master.startswith("local")


def retrying(master: str) -> str:
    """Returns the master with a number of tries, so that Spark repeats a task whose Python worker was killed.

    Clusters repeat tasks anyway. A local master repeats tasks only if it states a number of tries. If ``master`` states
    this number already, ``master`` is returned unchanged.
    """
    if master == "local":
        return f"local[1,{_TASK_TRIES}]"
    return f"{master[:-1]},{_TASK_TRIES}]" if is_local(master) and "," not in master else master


def addresses_of(master: str) -> list[tuple[str, int]]:
    """Returns (host, port) of every master of a standalone cluster. Returns an empty list for another kind of master."""
    if not master.startswith("spark://"):
        return []
    pairs = (address.rsplit(":", 1) for address in master.removeprefix("spark://").split(","))
    return [(host.strip("[]"), int(port)) for host, port in pairs]


def check_master_answers(master: str, seconds: float = _ANSWER_SECONDS) -> None:
    """Raises ``MasterAway`` if no master of a standalone cluster accepts a connection.

    Without this check, Spark would try to connect for a minute.
    """
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
    """Returns the address of this machine to which executors are to connect. None means that Spark chooses the address.

    The result is the local address that a connection to the master would have. No packet is sent to find this address.
    If the master is on this machine, the result is a loopback address. So the driver does not listen on the network.
    """
    if is_local(master):
        return _LOOPBACK
    for host, port in addresses_of(master):
        with suppress(OSError):  # the name cannot be resolved: try the next master, or leave the choice to Spark
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)
                return str(probe.getsockname()[0])
    return None
