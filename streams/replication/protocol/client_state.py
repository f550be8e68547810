"""What a following process tells the server about itself, and tells it again after every reconnect (pure).

The counterpart of a worker's reports: who syncs here, up to where federation was taken, from where users came, that a remote
server is up. Give a `Speaker` to the follower's options; while there is no connection only what lasts is remembered: who
syncs, and the last acknowledgement. Every method raises `UnsendableCommand` for what no line can carry. Assumes one caller
at a time, on the follower's loop.
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

__all__ = ["Speaker"]

#: An address of a user is told again only after this.
SEEN_AGAIN_MS = 120_000
#: Addresses that are remembered for that.
MOST_ADDRESSES = 10_000


class Speaker:
    """Speaks for one process.

    ``worker_id`` is random per process (version 1.43: five letters), ``instance`` the process's name. ``now_ms`` gives
    milliseconds since the epoch.
    """

    def __init__(self, worker_id: str, instance: str, now_ms: Callable[[], int]) -> None:
        self._worker_id = worker_id
        self._instance = instance
        self._now_ms = now_ms
        self._say: Callable[[Command], None] = _nobody
        self._syncs: dict[tuple[str, str | None], int] = {}
        self._acknowledged: int | None = None
        self._seen: BoundedDict[tuple[str, str, str], int] = BoundedDict(MOST_ADDRESSES)
        self._has_said_syncs = False

    # --- the connection -------------------------------------------------------------------------------------------

    def attach(self, say: Callable[[Command], None] | None) -> None:
        """From now on speak this way; None: nobody hears."""
        self._say = say or _nobody

    def greeting(self) -> list[Command]:
        """What a new connection has to be told: everything that lasts."""
        said: list[Command] = [self._sync(key, is_syncing=True) for key in self._syncs]
        self._has_said_syncs = bool(said)
        if self._acknowledged is not None:
            said.append(FederationAck(self._instance, self._acknowledged))
        return said

    def farewell(self) -> list[Command]:
        """What is said before an orderly end."""
        return [ClearUserSync(self._worker_id)] if self._has_said_syncs else []

    # --- who syncs ------------------------------------------------------------------------------------------------

    def start_syncing(self, user_id: str, device_id: str | None = None) -> None:
        """The user began to sync here; once more for each further request at the same time."""
        key = user_id, device_id
        command = _checked(self._sync(key, is_syncing=True))
        self._syncs[key] = self._syncs.get(key, 0) + 1
        if self._syncs[key] == 1:
            self._has_said_syncs = True
            self._say(command)

    def stop_syncing(self, user_id: str, device_id: str | None = None) -> None:
        """One request of the user ended; with the last one the user syncs no more. Raises ``KeyError`` without a start."""
        key = user_id, device_id
        self._syncs[key] -= 1
        if self._syncs[key] == 0:
            del self._syncs[key]
            self._say(self._sync(key, is_syncing=False))

    def _sync(self, key: tuple[str, str | None], *, is_syncing: bool) -> UserSync:
        user_id, device_id = key
        return UserSync(self._worker_id, user_id, is_syncing, self._now_ms(), device_id)

    # --- the rest -------------------------------------------------------------------------------------------------

    def acknowledge_federation(self, token: int) -> None:
        """Everything of the stream ``federation`` up to there was taken."""
        self._acknowledged = token
        self._say(FederationAck(self._instance, token))

    def see(self, user_id: str, access_token: str, ip: str, user_agent: str, device_id: str | None = None) -> None:
        """The user was here from this address; told at most once in two minutes."""
        now = self._now_ms()
        key = user_id, access_token, ip
        if now < self._seen.get(key, -SEEN_AGAIN_MS) + SEEN_AGAIN_MS:
            return
        command = _checked(UserIP(user_id, access_token, ip, user_agent, device_id, now))
        self._seen.put(key, now)
        self._say(command)

    def remote_server_up(self, server_name: str) -> None:
        """Tell everybody that a remote server can be reached again."""
        self._say(_checked(RemoteServerUp(server_name)))


def _nobody(command: Command) -> None:
    """Without a connection nobody hears."""


def _checked(command: Command) -> Command:
    format_line(command)
    return command
