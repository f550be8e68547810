"""Signatures of signed JSON: ed25519 over the canonical form without ``signatures`` and ``unsigned`` (pure).

A signature that cannot be read counts as missing. No function here raises because of what another server wrote.
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
_KEY_BYTES = 32
_MOST_TRIED = 16
"""The most keys, and the most signatures, of a third-party invite that are tried."""
_URLSAFE = str.maketrans("-_", "+/")
_P = 2**255 - 19
_EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset((0, 1, _P - 1, _EIGHTH, _P - _EIGHTH))
"""The y coordinates of the points whose order divides 8."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A server's private key. ``key_id`` is its published name, such as ``ed25519:auto``."""

    server: str
    key_id: str
    private: Ed25519PrivateKey

    @classmethod
    def from_seed(cls, server: str, key_id: str, seed: str) -> SigningKey:
        """Returns the key of a 32-byte seed in base64, as servers store it. Raises ``ValueError``."""
        if not key_id.startswith(_ALGORITHM):
            raise ValueError(f"The key ID {key_id!r} should begin with {_ALGORITHM!r}.")
        return cls(server, key_id, Ed25519PrivateKey.from_private_bytes(_decoded(seed)))

    @property
    def public(self) -> str:
        """Base64 without padding."""
        return _encoded(self.private.public_key().public_bytes_raw())

    def signature(self, value: Mapping[str, Any]) -> str:
        """Raises ``NotCanonical`` if the object has no canonical form."""
        return _encoded(self.private.sign(encode(_covered(value), strict=False)))

    def sign_event(self, event: Mapping[str, Any], version: RoomVersion) -> dict[str, Any]:
        """Returns the event with this server's signature added. ``hashes`` must be set already."""
        signatures = {server: dict(found) for server, found in event.get("signatures", {}).items()}
        signatures.setdefault(self.server, {})[self.key_id] = self.signature(prune(event, version))
        return {**event, "signatures": signatures}


def verify_keys(value: Mapping[str, Any], signatures: Sequence[tuple[str, str]]) -> bool:
    """Returns true if at least one (public key, signature) pair verifies for the object."""
    message = _message(value) if signatures else None
    return message is not None and any(_verifies(key, signature, message) for key, signature in signatures)


def signed_by(value: Mapping[str, Any], public_keys: Sequence[str]) -> bool:
    """Returns true if any server signed the object with one of these keys, under any key ID.

    Each key is tried with each signature, so only the first 16 keys and the first 16 signatures count.
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
    """Returns true if this is a key that can verify signatures.

    Constructs no key object, which costs as much as all these checks: a file may have a million keys, of which an
    import uses few.
    """
    try:
        point = _decoded(key)
    except ValueError:
        return False
    return key_id.startswith(_ALGORITHM) and len(point) == _KEY_BYTES and not _is_weak(point)


def signatures_of(value: Mapping[str, Any], server: str) -> list[tuple[str, str]]:
    """Returns a server's ed25519 signatures, as pairs (key ID, signature), without verifying them."""
    servers = value.get("signatures")
    found = servers.get(server) if isinstance(servers, dict) else None
    entries = found.items() if isinstance(found, dict) else ()
    return [(name, text) for name, text in entries if name.startswith(_ALGORITHM) and isinstance(text, str)]


def _verifies(public_key: str, signature: str, message: bytes) -> bool:
    try:
        point, signed = _decoded(public_key), _decoded(signature)
        if _is_weak(point) or _is_weak(signed[:32]):
            return False
        Ed25519PublicKey.from_public_bytes(point).verify(signed, message)
    except (InvalidSignature, ValueError):  # binascii.Error is a ValueError
        return False
    return True


def _is_weak(point: bytes) -> bool:
    # Servers refuse points of small order, or whose y is not below the prime: anyone can forge signatures for them.
    y = int.from_bytes(point, "little") & (2**255 - 1)
    return y >= _P or y in _SMALL_ORDER


def _decoded(text: str) -> bytes:
    # standard or URL-safe, with or without padding
    try:
        if "-" in text or "_" in text:
            text = text.translate(_URLSAFE)
        return binascii.a2b_base64(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode().rstrip("=")
