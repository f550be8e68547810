"""Signatures of signed JSON: ed25519 over the canonical form without ``signatures`` and ``unsigned`` (pure).

A signature that cannot be read is simply none; nothing here raises for what somebody else wrote.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from events.errors import NotCanonical
from events.format.canonical_json import encode
from events.format.redaction import prune
from state.rules.room_versions import RoomVersion

__all__ = [
    "SigningKey",
    "is_public_key",
    "signatures_of",
    "signed_by",
    "verify_keys",
]

_ALGORITHM = "ed25519:"
_MOST_TRIED = 16
"""Keys, and signatures, of a third party invite; others are not looked at."""
_P = 2**255 - 19
_EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset((0, 1, _P - 1, _EIGHTH, _P - _EIGHTH))
"""The y of the points of which eight times is nothing."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A server's private key; ``key_id`` is its name as others ask for it, such as ``ed25519:auto``."""

    server: str
    key_id: str
    private: Ed25519PrivateKey

    @classmethod
    def from_seed(cls, server: str, key_id: str, seed: str) -> SigningKey:
        """From the 32 bytes of the seed in base64, as servers keep it; raises ``ValueError``."""
        if not key_id.startswith(_ALGORITHM):
            raise ValueError(f"The key ID {key_id!r} should begin with {_ALGORITHM!r}.")
        return cls(server, key_id, Ed25519PrivateKey.from_private_bytes(_decoded(seed)))

    @property
    def public(self) -> str:
        """The public key in base64 without padding, as it is published."""
        return _encoded(self.private.public_key().public_bytes_raw())

    def signature(self, value: Mapping[str, Any]) -> str:
        """The signature of an object that has a canonical form; raises ``NotCanonical``."""
        return _encoded(self.private.sign(encode(_covered(value), strict=False)))

    def sign_event(self, event: Mapping[str, Any], version: RoomVersion) -> dict[str, Any]:
        """The event with this server's signature beside those that it has; ``hashes`` must be in already."""
        signatures = {server: dict(found) for server, found in event.get("signatures", {}).items()}
        signatures.setdefault(self.server, {})[self.key_id] = self.signature(prune(event, version))
        return {**event, "signatures": signatures}


def verify_keys(value: Mapping[str, Any], signatures: Sequence[tuple[str, str]]) -> bool:
    """Whether one of these signatures, each with its public key before it, is of the object."""
    message = _message(value) if signatures else None
    return message is not None and any(_verifies(key, signature, message) for key, signature in signatures)


def signed_by(value: Mapping[str, Any], public_keys: Sequence[str]) -> bool:
    """Whether anybody signed the object with one of these keys, whatever they are called.

    The first 16 keys and the first 16 signatures are looked at: each key is tried with each signature.
    """
    message, signatures = _message(value), value.get("signatures")
    if message is None or not isinstance(signatures, dict):
        return False
    entries = chain.from_iterable(signatures_of(value, server) for server in signatures)
    found = list(islice(dict.fromkeys(signature for _, signature in entries), _MOST_TRIED))
    keys = islice(dict.fromkeys(public_keys), _MOST_TRIED)
    return any(_verifies(key, signature, message) for key in keys for signature in found)


def _message(value: Mapping[str, Any]) -> bytes | None:
    try:
        return encode(_covered(value), strict=False)
    except NotCanonical:
        return None


def _covered(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key not in ("signatures", "unsigned")}


def is_public_key(key_id: str, key: str) -> bool:
    """Whether this can verify anything."""
    try:
        _public_key(key)
    except ValueError:
        return False
    return key_id.startswith(_ALGORITHM)


def signatures_of(value: Mapping[str, Any], server: str) -> list[tuple[str, str]]:
    """(key ID, signature) of what a server signed with a key of the known algorithm, whether it verifies or not."""
    servers = value.get("signatures")
    found = servers.get(server) if isinstance(servers, dict) else None
    entries = found.items() if isinstance(found, dict) else ()
    return [(name, text) for name, text in entries if name.startswith(_ALGORITHM) and isinstance(text, str)]


def _verifies(public_key: str, signature: str, message: bytes) -> bool:
    try:
        key, signed = _public_key(public_key), _decoded(signature)
        if _is_weak(signed[:32]):
            return False
        key.verify(signed, message)
    except (InvalidSignature, ValueError):  # binascii.Error is a ValueError
        return False
    return True


def _public_key(text: str) -> Ed25519PublicKey:
    """Raises ``ValueError``, also for a weak key: anybody can make signatures that fit it."""
    point = _decoded(text)
    if _is_weak(point):
        raise ValueError("The key is a point of small order, or one that is written in another way than servers take.")
    return Ed25519PublicKey.from_public_bytes(point)


def _is_weak(point: bytes) -> bool:
    """Whether servers refuse a point of this form: those of small order, and those whose y is not below the prime."""
    y = int.from_bytes(point, "little") & (2**255 - 1)
    return y >= _P or y in _SMALL_ORDER


def _decoded(text: str) -> bytes:
    """Base64, standard or URL-safe, with or without padding."""
    try:
        return base64.b64decode(text.translate(_URLSAFE) + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode().rstrip("=")


_URLSAFE = str.maketrans("-_", "+/")
