"""State that a following process reports to its server, and reports again after every reconnect (pure).

A worker reports four things: its syncing users, the position up to which it has sent federation traffic, users'
addresses, and remote servers that are up again. This module sends these reports. A `ClientState` is passed in the
follower's options. While there is no connection, the `ClientState` keeps only the syncing users and the last
acknowledgement. Every method raises `UnsendableCommand` if its command cannot be written as a line. Assumes one caller
at a time, on the follower's event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from streams.core.bounded import BoundedDict
from streams.replication.protocol.commands import (
    ClearUserSync,
    Command,
    FederationAck,
    RemoteServerUp,
    UserIP,
    UserSync,
    format_line,
)

__all__ = ["ClientState"]

#: The same address of a user is reported again only after this time.
SEEN_AGAIN_MS = 120_000
#: Most addresses that are remembered for `SEEN_AGAIN_MS`.
MOST_ADDRESSES = 10_000


class ClientState:
    """The state that one process reports to its server.

    ``worker_id`` is random per process (in Synapse 1.43: five letters). ``instance`` is the instance name. ``now_ms``
    returns the Unix time in milliseconds.
    """

    def __init__(self, worker_id: str, instance: str, now_ms: Callable[[], int]) -> None:
        self._worker_id = worker_id
        self._instance = instance
        self._now_ms = now_ms
        self._send: Callable[[Command], None] = _drop
        self._syncs: dict[tuple[str, str | None], int] = {}
        self._acknowledged: int | None = None
        self._seen: BoundedDict[tuple[str, str, str], int] = BoundedDict(MOST_ADDRESSES)
        self._has_sent_syncs = False

    # --- the connection -------------------------------------------------------------------------------------------

    def attach(self, send: Callable[[Command], None] | None) -> None:
        """Sets the function that sends a command. If ``send`` is None, commands are dropped until the next call."""
        self._send = send or _drop

    def greeting(self) -> list[Command]:
        """Returns the commands for a new connection: a USER_SYNC for each syncing user, and the last acknowledgement."""
        commands: list[Command] = [self._sync(key, is_syncing=True) for key in self._syncs]
        self._has_sent_syncs = bool(commands)
        if self._acknowledged is not None:
            commands.append(FederationAck(self._instance, self._acknowledged))
        return commands

    def farewell(self) -> list[Command]:
        """Returns the commands to send before an orderly end: CLEAR_USER_SYNC if a USER_SYNC was sent, else no command."""
        return [ClearUserSync(self._worker_id)] if self._has_sent_syncs else []

    # --- syncing users --------------------------------------------------------------------------------------------

    def start_syncing(self, user_id: str, device_id: str | None = None) -> None:
        """Counts one more sync request of a user and device. Sends USER_SYNC if it is the only open request.

        The caller must call `stop_syncing` once for each call of this method.
        """
        key = user_id, device_id
        command = _checked(self._sync(key, is_syncing=True))
        self._syncs[key] = self._syncs.get(key, 0) + 1
        if self._syncs[key] == 1:
            self._has_sent_syncs = True
            self._send(command)

    def stop_syncing(self, user_id: str, device_id: str | None = None) -> None:
        """Ends one sync request of a user and device. Sends USER_SYNC if no request is open now.

        Raises ``KeyError`` if no request was open before.
        """
        key = user_id, device_id
        self._syncs[key] -= 1
        if self._syncs[key] == 0:
            del self._syncs[key]
            self._send(self._sync(key, is_syncing=False))

    def _sync(self, key: tuple[str, str | None], *, is_syncing: bool) -> UserSync:
        user_id, device_id = key
        return UserSync(self._worker_id, user_id, is_syncing, self._now_ms(), device_id)

    # --- other reports --------------------------------------------------------------------------------------------

    def acknowledge_federation(self, token: int) -> None:
        """Reports that this process has handled every fact of the stream ``federation`` up to ``token``."""
        self._acknowledged = token
        self._send(FederationAck(self._instance, token))

    def see(self, user_id: str, access_token: str, ip: str, user_agent: str, device_id: str | None = None) -> None:
        """Reports that the user was seen at the address ``ip``.

        Reports the same user, access token and address at most once in two minutes.
        """
        now = self._now_ms()
        key = user_id, access_token, ip
        if now < self._seen.get(key, -SEEN_AGAIN_MS) + SEEN_AGAIN_MS:
            return
        command = _checked(UserIP(user_id, access_token, ip, user_agent, device_id, now))
        self._seen.put(key, now)
        self._send(command)

    def remote_server_up(self, server_name: str) -> None:
        """Reports that a remote homeserver can be reached again. The server relays the report to other processes."""
        self._send(_checked(RemoteServerUp(server_name)))


def _drop(command: Command) -> None:
    """Drops the command, because there is no connection."""


def _checked(command: Command) -> Command:
    format_line(command)
    return command
