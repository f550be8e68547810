"""Appends to the homeserver streams that need no further logic: one function per stream.

This site uses the functions, and so may other sites that install the app. Each function works in the caller's
transaction, or in a new one if no transaction is open. Readers get the fact after the commit. Each function returns the
fact's token. From async code call them with ``asgiref.sync.sync_to_async``. Typing has its own module
(``streams.homeserver.typing``). The two queues for federation have their own module, too
(``streams.homeserver.federation_queue``).

All functions raise ``UnusableFact`` for content that cannot be sent, and the errors of ``Stream.append``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streams import registry
from streams.catalog.declarations import PRESENCE_STATES
from streams.catalog.models import (
    AccountDataChange,
    DeviceListChange,
    GroupChange,
    Presence,
    PusherChange,
    PushRuleChange,
    Receipt,
    TagChange,
    ToDeviceMessage,
    UserSignatureChange,
)
from streams.core.json_codec import encode_json
from streams.errors import BadJson, UnusableFact

if TYPE_CHECKING:
    from streams.facts import Fact

__all__ = [
    "account_data_changed",
    "add_receipt",
    "append_rows",
    "devices_changed",
    "group_changed",
    "json_text",
    "messages_to_devices",
    "push_rules_changed",
    "pusher_changed",
    "set_presence",
    "set_tags",
    "signatures_changed",
]


def set_presence(*presences: Presence) -> list[int]:
    """Appends one fact to ``presence`` for each new state of a user. Returns the tokens of the facts.

    Earlier rows of the same users are deleted.
    """
    for presence in presences:
        if presence.state not in PRESENCE_STATES:
            raise UnusableFact(
                f"presence: {presence.user_id} cannot be {presence.state!r}; use {', '.join(sorted(PRESENCE_STATES))}."
            )
    return registry.get("presence").append(*presences)


def add_receipt(room_id: str, receipt_type: str, user_id: str, event_id: str, data: Mapping[str, Any]) -> int:
    """Appends to ``receipts``: the user has read the room up to an event.

    An example of ``data`` is ``{"ts": 1, "hidden": False}``.
    """
    text = json_text("receipts", dict(data))
    receipt = Receipt(room_id=room_id, receipt_type=receipt_type, user_id=user_id, event_id=event_id, data=text)
    return registry.get("receipts").append(receipt)[0]


def push_rules_changed(user_id: str) -> int:
    """Appends to ``push_rules``: the user's push rules changed."""
    return registry.get("push_rules").append(PushRuleChange(user_id=user_id))[0]


def pusher_changed(user_id: str, app_id: str, pushkey: str, *, deleted: bool = False) -> int:
    """Appends to ``pushers``: a pusher was set, or deleted."""
    change = PusherChange(user_id=user_id, app_id=app_id, pushkey=pushkey, deleted=deleted)
    return registry.get("pushers").append(change)[0]


def devices_changed(entities: Iterable[str]) -> int:
    """Appends to ``device_lists`` one fact with a row per entity.

    An entity is a user whose devices changed, or a server to which a change of devices must be sent.
    """
    return append_rows("device_lists", [DeviceListChange(entity=entity) for entity in entities])


def messages_to_devices(entities: Iterable[str]) -> int:
    """Appends to ``to_device`` one fact with a row per recipient: a local user or a server with messages for its devices."""
    return append_rows("to_device", [ToDeviceMessage(entity=entity) for entity in entities])


def signatures_changed(user_id: str) -> int:
    """Appends to ``user_signature``: the user signed other users' keys, or withdrew a signature."""
    return registry.get("user_signature").append(UserSignatureChange(user_id=user_id))[0]


def set_tags(user_id: str, room_id: str, tags: Mapping[str, Any]) -> int:
    """Appends to ``tag_account_data`` all tags that the user has now on the room."""
    change = TagChange(user_id=user_id, room_id=room_id, tags=json_text("tag_account_data", dict(tags)))
    return registry.get("tag_account_data").append(change)[0]


def account_data_changed(user_id: str, data_type: str, room_id: str | None = None) -> int:
    """Appends to ``account_data``: the user's data of that type changed, in the room or (without a room) globally."""
    change = AccountDataChange(user_id=user_id, room_id=room_id, data_type=data_type)
    return registry.get("account_data").append(change)[0]


def group_changed(group_id: str, user_id: str, content: Mapping[str, Any]) -> int:
    """Appends to ``groups``: the user's membership of a group changed.

    An example of ``content`` is ``{"membership": "join", "content": {}}``.
    """
    change = GroupChange(
        group_id=group_id, user_id=user_id, type="membership", content=json_text("groups", dict(content))
    )
    return registry.get("groups").append(change)[0]


def append_rows(stream_name: str, rows: Sequence[Fact]) -> int:
    """Appends one fact with several rows. Returns the token of the fact. Raises ``UnusableFact`` if ``rows`` is empty."""
    if not rows:
        raise UnusableFact(f"{stream_name}: a fact without rows has no content; give at least one row.")
    with registry.get(stream_name).reserve() as reservation:
        token = reservation.ids[0]
        for row in rows:
            setattr(row, row.id_field, token * reservation.stream.sign)
        reservation.write_directly(*rows)
        return token


def json_text(stream_name: str, value: Any) -> str:
    """Returns the compact ASCII JSON of a value. Raises ``UnusableFact`` for a value that JSON cannot represent."""
    try:
        return encode_json(value).decode("ascii")
    except BadJson as error:
        raise UnusableFact(f"{stream_name}: {error}. Use plain JSON values, without NaN and Infinity.") from error
