"""Checks that an event is signed by the servers that must sign it, with keys valid when the event was made (pure).

The caller provides the keys: ``KeysOf`` is called once for each server of a batch. ``KeyRing`` holds keys in memory,
for example from a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from events.errors import EventRefused, Reason, UnusableKeys
from events.format.foreign_forms import BYTE_ORDER_MARK
from events.format.parsing import ParsedEvent
from events.format.redaction import pruned_fields
from events.format.signatures import is_public_key, signatures_of, verify_keys
from events.format.strict_json import decode_event
from events.room.event_auth import is_third_party_invite
from state.rules.auth_selection import AUTHORISING_USER, server_of
from state.rules.room_versions import RoomVersion, room_version
from streams.runtime.gc_pause import collector_paused

__all__ = ["KeyRing", "KeysOf", "PublicKey", "check_signatures", "proves_version", "signing_servers"]

_MOST_KEYS_TRIED = 16
"""The most signatures of one server on one event that are examined. Further ones are ignored."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A server's key in base64. ``valid_until_ts``: its last valid millisecond, or None if unknown."""

    key: str
    valid_until_ts: int | None = None


_FIELDS = {"key", "valid_until_ts"}
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{43}=?")
_NAME = re.compile(r"([0-9A-Za-z.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
"""The form of a valid server name. With another name, a caller that fetches keys could be directed to another host."""

KeysOf = Callable[[str, Mapping[str, int]], Mapping[str, PublicKey | str]]
"""A function that returns the keys of a server by key ID.

The arguments are the server, and a map of the key IDs in its signatures to the latest ``origin_server_ts`` of an event that
the key signed. A plain string in the result is a key without a known end of validity. Unknown keys are left out. The keys
of the site's own server have to be returned, too.
"""


_Packed = Mapping[str, Sequence[tuple[str, str, int | None]]]
"""Keys as plain values: server -> (key ID, key, last valid millisecond)."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys in memory: server -> key ID -> key."""

    keys: Mapping[str, Mapping[str, PublicKey]]

    def __call__(self, server: str, wanted: Mapping[str, int]) -> Mapping[str, PublicKey | str]:
        return self.keys.get(server, {})

    def __reduce__(self) -> tuple[Callable[[_Packed], KeyRing], tuple[_Packed]]:
        # As plain values: an import sends them to each task, and objects take several times as long.
        packed = {
            server: [(key_id, key.key, key.valid_until_ts) for key_id, key in keys.items()]
            for server, keys in self.keys.items()
        }
        return _unpacked, (packed,)

    @classmethod
    def from_json(cls, text: bytes | str) -> KeyRing:
        """Returns the keys in ``{server: {key ID: key}}``. A key is base64 or ``{"key": base64, "valid_until_ts": ms}``.

        Raises ``UnusableKeys``, also if a server or a key occurs twice, of which one would silently be ignored.
        """
        try:
            encoded = text.encode() if isinstance(text, str) else text
            found = decode_event(encoded.removeprefix(BYTE_ORDER_MARK))
        except UnicodeEncodeError as error:
            raise UnusableKeys(f"no JSON: {error}") from None
        except EventRefused as error:
            if error.reason is Reason.NOT_AN_OBJECT:
                raise UnusableKeys("an object of servers is wanted, {server: {key ID: key}}") from None
            raise UnusableKeys(f"no JSON: {error.detail}") from None
        with collector_paused():  # so many objects live on that a collection would only look through them
            return cls({server: _server_keys(server, keys) for server, keys in found.items()})


def _unpacked(packed: _Packed) -> KeyRing:
    with collector_paused():
        return KeyRing(
            {server: {key_id: PublicKey(key, until) for key_id, key, until in keys} for server, keys in packed.items()}
        )


def _server_keys(server: str, keys: Any) -> dict[str, PublicKey]:
    if not isinstance(keys, dict):
        raise UnusableKeys(f"the keys of {server!r:.300} should be an object, {{key ID: key}}")
    return {key_id: _key(server, key_id, found) for key_id, found in keys.items()}


def _key(server: str, key_id: str, found: Any) -> PublicKey:
    key: Any = found
    until: Any = None
    if isinstance(found, dict) and found.keys() <= _FIELDS:
        key, until = found.get("key"), found.get("valid_until_ts")
    elif not isinstance(found, str):
        raise _unusable(server, key_id, 'should be a key in base64, or {"key": base64, "valid_until_ts": milliseconds}')
    if until is not None and type(until) is not int:
        raise _unusable(server, key_id, "has a valid_until_ts that is no whole number of milliseconds")
    # ``is_public_key`` passes over characters that are not base64, as servers do: a damaged line of the file would be taken.
    if not isinstance(key, str) or not _BASE64.fullmatch(key) or not is_public_key(key_id, key):
        raise _unusable(server, key_id, "is no public ed25519 key in base64")
    return PublicKey(key, until)


def _unusable(server: str, key_id: str, problem: str) -> UnusableKeys:
    return UnusableKeys(f"{key_id!r:.300} of {server!r:.300} {problem}")


def proves_version(create: ParsedEvent) -> bool:
    """Returns true if a create event with valid signatures proves the room version with which it was parsed.

    It proves nothing if no hash covers the version, or if its sender is of another server than the room ID.
    """
    version = room_version(create.room_version)
    is_same_server = version.room_id_is_create_hash or server_of(create.room_id) == server_of(create.sender)
    is_stated = create.content.get("room_version", "1") == create.room_version
    return is_same_server and is_stated and (create.content_hash_matches or version.newer_redactions)


def signing_servers(event: ParsedEvent) -> tuple[str, ...]:
    """Returns the servers that must have signed an event.

    A name is empty if an ID contains no server.

    * The sender's server, except of an invite that follows from a third-party invite, which any server may send.
    * In room versions 1 and 2, the server in the event ID.
    * From room version 8 on, the server of the user who authorised a restricted join.
    """
    version = room_version(event.room_version)
    found: list[str] = []
    if not is_third_party_invite(event):
        found.append(server_of(event.sender))
    if not version.ids_are_hashes:
        found.append(server_of(event.event_id))
    if version.restricted_joins and event.membership == "join" and AUTHORISING_USER in event.content:
        found.append(server_of(event.content[AUTHORISING_USER]))
    return tuple(dict.fromkeys(found))


def check_signatures(events: Sequence[ParsedEvent], keys_of: KeysOf) -> list[EventRefused | None]:
    """Returns for each event the reason why its signatures are not sufficient, or None.

    ``keys_of`` is called once for each server, and never for an invalid server name. Its exceptions are passed on.
    """
    signed = [_Signed(event) for event in events]
    wanted: dict[str, dict[str, int]] = {}
    for entry in signed:
        for server in entry.servers:
            latest = wanted.setdefault(server, {})
            for key_id, _ in entry.signatures[server]:
                latest[key_id] = max(latest.get(key_id, entry.event.origin_server_ts), entry.event.origin_server_ts)
    keys = {
        server: {
            key_id: PublicKey(key) if isinstance(key, str) else key for key_id, key in keys_of(server, latest).items()
        }
        for server, latest in wanted.items()
        if latest and _NAME.fullmatch(server)
    }
    return [entry.refusal(keys) for entry in signed]


class _Signed:
    def __init__(self, event: ParsedEvent) -> None:
        self.event = event
        self.servers = signing_servers(event)
        whole = decode_event(event.json)
        self._version: RoomVersion = room_version(event.room_version)
        self._pruned = pruned_fields(whole, self._version)
        self.signatures = {
            server: list(islice(signatures_of(whole, server), _MOST_KEYS_TRIED)) for server in self.servers
        }

    def refusal(self, keys: Mapping[str, Mapping[str, PublicKey]]) -> EventRefused | None:
        for server in self.servers:
            if reason := self._unsigned_by(server, keys.get(server, {})):
                return EventRefused(
                    Reason.BAD_SIGNATURE, f"{self.event.event_id} is not signed by {server!r}: {reason}"
                )
        return None

    def _unsigned_by(self, server: str, keys: Mapping[str, PublicKey]) -> str | None:
        signatures = self.signatures[server]
        if not signatures:
            return "there is no signature of it"
        known = [(keys[key_id], signature) for key_id, signature in signatures if key_id in keys]
        if not known:
            return f"the key {', '.join(key_id[:100] for key_id, _ in signatures[:3])} is not known"
        made_at = self.event.origin_server_ts
        valid = [
            (key.key, signature)
            for key, signature in known
            if not self._version.enforces_key_validity or key.valid_until_ts is None or key.valid_until_ts >= made_at
        ]
        if not valid:
            return f"the key did not hold any more at {self.event.origin_server_ts}"
        return None if verify_keys(self._pruned, valid) else "the signature is another one's, or of another event"
