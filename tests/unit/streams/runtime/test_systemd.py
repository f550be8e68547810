"""What systemd is told, and that nothing of it can stop a process."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from streams.runtime import systemd
from tests.support.waiting import DEADLINE_SECONDS


@pytest.fixture
def manager(tmp_path: Path, settings):
    """A socket as systemd makes one for each service."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(DEADLINE_SECONDS)
        listening.bind(str(tmp_path / "notify"))
        settings.REPLSITE_NOTIFY_SOCKET = str(tmp_path / "notify")
        yield listening


def test_words_come_in_one_datagram(manager):
    systemd.notify(systemd.READY, "STATUS=ready readers=billing")
    assert manager.recv(1000) == b"READY=1\nSTATUS=ready readers=billing"


def test_a_socket_without_a_file(settings):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(DEADLINE_SECONDS)
        listening.bind("")  # the kernel gives it a name
        name = listening.getsockname()
        settings.REPLSITE_NOTIFY_SOCKET = "@" + name[1:].decode()
        systemd.notify(systemd.READY)
        assert listening.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "/" + "x" * 200])
def test_a_manager_that_is_not_there_is_no_error(settings, address):
    settings.REPLSITE_NOTIFY_SOCKET = address
    systemd.notify(systemd.READY)


def test_a_manager_that_does_not_read_holds_nobody_up(manager):
    for _ in range(10_000):
        systemd.notify(systemd.ALIVE)
    assert manager.recv(100) == b"WATCHDOG=1"


async def test_signs_of_life_come_thrice_in_the_time_given(manager, settings):
    settings.REPLSITE_WATCHDOG_SECONDS = 0.06
    signs = asyncio.create_task(systemd.notify_watchdog())
    for _ in range(3):
        assert await asyncio.to_thread(manager.recv, 100) == b"WATCHDOG=1"
    signs.cancel()


async def test_no_signs_of_life_unless_wanted(settings):
    settings.REPLSITE_WATCHDOG_SECONDS = 0.0
    await asyncio.wait_for(systemd.notify_watchdog(), DEADLINE_SECONDS)
