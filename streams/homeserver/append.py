"""Appends to the homeserver streams that need no further logic: one function per stream.

This site uses the functions, and so may other sites that install the app. Each function works in the caller's
transaction, or in a new one if no transaction is open. Readers get the fact after the commit. Each function returns the
fact's token. From async code call them with ``asgiref.sync.sync_to_async``. Typing has its own module
(``streams.homeserver.typing``). The two queues for federation have their own module, too
(``streams.homeserver.federation_queue``).

All functions raise ``UnusableFact`` for content that cannot be stored or sent, and the errors of ``Stream.append``.
Content comes from other servers. Texts with NUL or half a surrogate pair, integers beyond 64 bits and identifiers of
more than 255 bytes cannot be stored. In JSON the characters are escaped, so they can be stored there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
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
from streams.core.json_codec import MOST_VALUE_DEPTH, encode_json, is_deeper
from streams.errors import BadJson, UnusableFact

if TYPE_CHECKING:
    from streams.facts import Fact

MOST_BYTES = 255
"""The most bytes of an identifier in UTF-8, as in Matrix. An index of PostgreSQL takes a few more."""
_BIGINTS = 2**63


def set_presence(*presences: Presence) -> list[int]:
    """Appends one fact to ``presence`` for each new state of a user. Returns the tokens of the facts.

    Earlier rows of the same users are deleted.
    """
    for presence in presences:
        if presence.state not in PRESENCE_STATES:
            raise UnusableFact(
                f"presence: {presence.user_id} cannot be {presence.state!r}; use {', '.join(sorted(PRESENCE_STATES))}."
            )
    return _append("presence", *presences)


def add_receipt(room_id: str, receipt_type: str, user_id: str, event_id: str, data: Mapping[str, Any]) -> int:
    """Appends to ``receipts``: the user has read the room up to an event.

    An example of ``data`` is ``{"ts": 1, "hidden": False}``.
    """
    text = _object_text("receipts", data)
    receipt = Receipt(room_id=room_id, receipt_type=receipt_type, user_id=user_id, event_id=event_id, data=text)
    return _append("receipts", receipt)[0]


def push_rules_changed(user_id: str) -> int:
    """Appends to ``push_rules``: the user's push rules changed."""
    return _append("push_rules", PushRuleChange(user_id=user_id))[0]


def pusher_changed(user_id: str, app_id: str, pushkey: str, *, deleted: bool = False) -> int:
    """Appends to ``pushers``: a pusher was set, or deleted."""
    change = PusherChange(user_id=user_id, app_id=app_id, pushkey=pushkey, deleted=deleted)
    return _append("pushers", change)[0]


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
    return _append("user_signature", UserSignatureChange(user_id=user_id))[0]


def set_tags(user_id: str, room_id: str, tags: Mapping[str, Any]) -> int:
    """Appends to ``tag_account_data`` all tags that the user has now on the room."""
    change = TagChange(user_id=user_id, room_id=room_id, tags=_object_text("tag_account_data", tags))
    return _append("tag_account_data", change)[0]


def account_data_changed(user_id: str, data_type: str, room_id: str | None = None) -> int:
    """Appends to ``account_data``: the user's data of that type changed, in the room or (without a room) globally."""
    change = AccountDataChange(user_id=user_id, room_id=room_id, data_type=data_type)
    return _append("account_data", change)[0]


def group_changed(group_id: str, user_id: str, content: Mapping[str, Any]) -> int:
    """Appends to ``groups``: the user's membership of a group changed.

    An example of ``content`` is ``{"membership": "join", "content": {}}``.
    """
    change = GroupChange(group_id=group_id, user_id=user_id, type="membership", content=_object_text("groups", content))
    return _append("groups", change)[0]


def append_rows(stream_name: str, rows: Sequence[Fact]) -> int:
    """Appends one fact with several rows. Returns the token of the fact. Raises ``UnusableFact`` if ``rows`` is empty."""
    if not rows:
        raise UnusableFact(f"{stream_name}: a fact without rows has no content; give at least one row.")
    for row in rows:
        check_storable(stream_name, _values(row), _indexed(type(row)))
    with registry.get(stream_name).reserve() as reservation:
        token = reservation.ids[0]
        for row in rows:
            setattr(row, row.id_field, token * reservation.stream.sign)
        reservation.write_directly(*rows)
        return token


def json_text(stream_name: str, value: Any) -> str:
    """Returns the compact ASCII JSON of a value. Raises ``UnusableFact`` for a value that JSON cannot represent."""
    if is_deeper(value, MOST_VALUE_DEPTH):
        raise UnusableFact(f"{stream_name}: the JSON is nested deeper than {MOST_VALUE_DEPTH} levels.")
    try:
        return encode_json(value).decode("ascii")
    except BadJson as error:
        raise UnusableFact(f"{stream_name}: {error}. Use plain JSON values, without NaN and Infinity.") from error


def _object_text(stream_name: str, value: Any) -> str:
    if not isinstance(value, Mapping):
        raise UnusableFact(f"{stream_name}: {value!r:.100} should be a JSON object.")
    return json_text(stream_name, dict(value))


def check_storable(stream_name: str, values: Mapping[str, Any], indexed: Collection[str] = ()) -> None:
    """Raises ``UnusableFact`` for a value that PostgreSQL cannot store. ``indexed`` are the names of values in an index."""
    for name, value in values.items():
        for part in value if isinstance(value, list) else [value]:
            if (problem := _problem(part, is_indexed=name in indexed)) is not None:
                raise UnusableFact(f"{stream_name}: {name} {problem}.")


def _problem(value: Any, *, is_indexed: bool) -> str | None:
    if isinstance(value, int) and not -_BIGINTS <= value < _BIGINTS:
        return "is an integer of more than 64 bits"
    if not isinstance(value, str):
        return None
    if "\0" in value:
        return "has the character U+0000, which cannot be stored"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which cannot be stored"
    return f"has {size} bytes; an identifier has at most {MOST_BYTES}" if is_indexed and size > MOST_BYTES else None


def _append(stream_name: str, *facts: Fact) -> list[int]:
    for fact in facts:
        check_storable(stream_name, _values(fact), _indexed(type(fact)))
    return registry.get(stream_name).append(*facts)


def _values(fact: Fact) -> dict[str, Any]:
    return {field.attname: getattr(fact, field.attname) for field in fact._meta.concrete_fields}


@cache
def _indexed(model: type[Fact]) -> frozenset[str]:
    return frozenset(name for index in model._meta.indexes for name in index.fields)
