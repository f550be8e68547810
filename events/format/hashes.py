"""Content hash, reference hash and ID of an event (pure).

The content hash covers the event as its sender made it. The reference hash covers the redacted form, so a redaction does not
change it. From room version 3 on the event ID is the reference hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from events.format.canonical_json import encode_examined, examine
from events.format.redaction import pruned_fields
from state.rules.room_versions import EventIdForm, RoomVersion

_STANDARD = str.maketrans("-_", "+/")
_PADDED = 44
NOT_COVERED = ("unsigned", "age_ts", "outlier", "destinations")
"""The keys at the top level of an event that neither its hashes nor its signatures cover. Any server may have written them."""
_NOT_IN_CONTENT_HASH = (*NOT_COVERED, "signatures", "hashes")


def content_hash(event: Mapping[str, Any], version: RoomVersion, *, plain: bool | None = None) -> str:
    """Returns the hash of the whole event, in standard base64 without padding.

    ``plain`` is the result of ``canonical_json.examine`` for this event, if the caller has it already.
    """
    covered = dict(event)
    for key in _NOT_IN_CONTENT_HASH:
        covered.pop(key, None)
    return _unpadded(base64.b64encode(_digest(covered, version, plain)))


def content_hash_matches(event: Mapping[str, Any], version: RoomVersion, *, plain: bool | None = None) -> bool:
    """Returns true if ``hashes.sha256`` is the content hash, so false for what was redacted or tampered with.

    The decoded bytes are compared, because servers accept padded and URL-safe base64 as well. Other algorithms do not
    count.
    """
    hashes = event.get("hashes")
    claimed = hashes.get("sha256") if isinstance(hashes, dict) else None
    if not isinstance(claimed, str):
        return False
    right = content_hash(event, version, plain=plain)
    return claimed == right or _same_bytes(claimed, right)


def _same_bytes(claimed: str, right: str) -> bool:
    if len(claimed) not in (len(right), _PADDED):
        return False
    try:
        return base64.b64decode(claimed.translate(_STANDARD).ljust(_PADDED, "="), validate=True) == base64.b64decode(
            right + "="
        )
    except ValueError:
        return False


def reference_hash(event: Mapping[str, Any], version: RoomVersion, *, plain: bool | None = None) -> str:
    return _unpadded(base64.b64encode(_reference_digest(event, version, plain)))


def event_id(event: Mapping[str, Any], version: RoomVersion, *, plain: bool | None = None) -> str:
    """Returns the field ``event_id`` in room versions 1 and 2, else the ID computed from the reference hash."""
    if version.event_id_form is EventIdForm.CHOSEN:
        return str(event["event_id"])
    digest = _reference_digest(event, version, plain)
    urlsafe = version.event_id_form is EventIdForm.URLSAFE_HASH
    return "$" + _unpadded(base64.urlsafe_b64encode(digest) if urlsafe else base64.b64encode(digest))


def _reference_digest(event: Mapping[str, Any], version: RoomVersion, plain: bool | None) -> bytes:
    covered = pruned_fields(event, version)
    covered.pop("signatures", None)
    if version.ids_are_hashes:
        covered.pop("event_id", None)
    return _digest(covered, version, plain)


def _digest(covered: dict[str, Any], version: RoomVersion, plain: bool | None) -> bytes:
    if plain is None:
        plain = examine(covered, strict=version.strict_json)
    return hashlib.sha256(encode_examined(covered, plain=plain)).digest()


def _unpadded(text: bytes) -> str:
    return text.rstrip(b"=").decode()
