"""What one worker tells all others is passed on: to every other connection here, and by NOTIFY to those of other servers.

Such commands are hints, not facts: losing one is harmless, and none is stored. Lines travel as base64 in pieces, since a
payload of NOTIFY holds no NUL and fewer than 8,000 bytes. Commands that 1.43 does not know go only to clients that said one
themselves: others would end the connection. Assumes a single event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from streams import database
from streams.logs import get_logger
from streams.notifications import NotifyListener
from streams.replication.broadcaster import Broadcaster
from streams.replication.commands import (
    LATER_WORDS,
    CancelTask,
    Command,
    LockReleased,
    NewActiveTask,
    RemoteServerUp,
    format_line,
    parse_line,
)
from streams.replication.errors import CommandError
from streams.replication.flushing import Flusher
from streams.replication.hearing import tell
from streams.replication.peers import Peer

__all__ = ["CHANNEL", "RELAYED", "Part", "Relay", "notify_all", "parts_of"]

log = get_logger(__name__)
CHANNEL = "replsite_relay"
#: What is told to everybody.
RELAYED = (RemoteServerUp, LockReleased, NewActiveTask, CancelTask)

PART_BYTES = 7_000
#: Lines that wait for the database, and unfinished messages of other servers; more is dropped and counted.
WAITING_LIMIT_BYTES = 256 * 1024
GAP_SECONDS = 0.05


class Part(NamedTuple):
    """A piece of a message of one server."""

    server: str
    message: str
    number: int
    parts: int
    text: str

    @classmethod
    def parse(cls, payload: str) -> Part | None:
        """Read a payload; None for what is none of ours."""
        fields = payload.split(" ")
        if len(fields) != 5 or not (fields[2].isdecimal() and fields[3].isdecimal()):
            return None
        return cls(fields[0], fields[1], int(fields[2]), int(fields[3]), fields[4])


def parts_of(server: str, data: bytes) -> list[str]:
    """The payloads for some lines."""
    text = base64.b64encode(data).decode("ascii")
    pieces = [text[start : start + PART_BYTES] for start in range(0, len(text), PART_BYTES)]
    message = uuid.uuid4().hex
    return [f"{server} {message} {number} {len(pieces)} {piece}" for number, piece in enumerate(pieces)]


def notify_all(cursor: Any, server: str, data: bytes) -> None:
    """Tell the lines to every server; the parts of a message stay together, since they come from one transaction."""
    cursor.execute("SELECT pg_notify(%s, part) FROM unnest(%s::text[]) AS part", [CHANNEL, parts_of(server, data)])


class Relay:
    """Passes commands on between the connections of all servers."""

    def __init__(self, broadcaster: Broadcaster) -> None:
        self.dropped: Counter[str] = Counter()
        self._broadcaster = broadcaster
        self._key = uuid.uuid4().hex
        self._waiting: dict[bytes, None] = {}
        self._waiting_bytes = 0
        self._unfinished: dict[tuple[str, str], list[str]] = {}
        using = broadcaster.settings.database
        self._connection = database.KeptConnection(using, "replsite relay")
        self._flusher: Flusher[bytes] | None = None
        self._listener = NotifyListener(CHANNEL, Part.parse, self._heard_in_thread, using, "relay")
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Listen and be ready to tell; raises when the database cannot be used."""
        self._loop = asyncio.get_running_loop()
        await self._loop.run_in_executor(None, self._listener.start)
        self._flusher = Flusher(
            "relay",
            self._collect,
            self._notify,
            gap_seconds=GAP_SECONDS,
            idle_seconds=60.0,
            close=self._connection.close,
        )
        self._flusher.start()

    async def stop(self) -> None:
        """Tell what waits, and end."""
        if self._loop is not None and self._flusher is not None:
            await self._flusher.stop()
            await self._loop.run_in_executor(None, self._listener.stop)

    def pass_on(self, commands: Sequence[Command], sender: Peer) -> None:
        """From a client here: to all other clients, to the other servers, and to the handlers of this process."""
        if any(command.WORD in LATER_WORDS for command in commands):
            sender.knows_later_commands = True
        self._tell_here(commands, sender)
        for command in commands:
            self._wait(command)
        if self._flusher is not None:
            self._flusher.wake()

    # --- here -----------------------------------------------------------------------------------------------------

    def _tell_here(self, commands: Iterable[Command], sender: Peer | None) -> None:
        known: list[Command] = []
        later: list[Command] = []
        for command in commands:
            (later if command.WORD in LATER_WORDS else known).append(command)
            tell(command)
        if known:
            self._broadcaster.relay(known, sender)
        if later:
            self._broadcaster.relay(later, sender, lambda peer: peer.knows_later_commands)

    # --- to other servers -----------------------------------------------------------------------------------------

    def _wait(self, command: Command) -> None:
        line = format_line(command, self._broadcaster.settings.line_limit_bytes)
        if line in self._waiting:
            return  # a hint that is given twice within a moment is one
        if self._waiting_bytes + len(line) > WAITING_LIMIT_BYTES:
            self.dropped[command.WORD] += 1
            return
        self._waiting[line] = None
        self._waiting_bytes += len(line)

    def _collect(self) -> bytes | None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return data or None

    def _notify(self, data: bytes) -> None:
        with self._connection.cursor() as cursor:
            notify_all(cursor, self._key, data)

    # --- from other servers ---------------------------------------------------------------------------------------

    def _heard_in_thread(self, parts: list[Part | None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._heard, parts)

    def _heard(self, parts: list[Part | None]) -> None:
        if not parts:
            self._unfinished.clear()  # a new connection: the rest of what was under way will not come
        for part in parts:
            if part is not None and part.server != self._key:
                self._take(part)

    def _take(self, part: Part) -> None:
        key = part.server, part.message
        pieces = self._unfinished.setdefault(key, [])
        pieces.append(part.text)
        if len(pieces) < part.parts:
            if sum(len(text) for others in self._unfinished.values() for text in others) > 2 * WAITING_LIMIT_BYTES:
                self._unfinished.clear()
                self.dropped["relay"] += 1
            return
        del self._unfinished[key]
        try:
            lines = base64.b64decode("".join(pieces), validate=True).decode("utf-8").split("\n")
            self._tell_here([parse_line(line) for line in lines if line], None)
        except (CommandError, binascii.Error, UnicodeDecodeError) as error:  # another version, or a stranger
            self.dropped["relay"] += 1
            log.warning("relay.not_understood", error=str(error))
