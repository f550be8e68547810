"""The tables of the fourteen streams of a homeserver besides events: receipts, presence, typing, devices and so on.

Each row holds the values that followers receive. Rows are appended by the functions of ``streams.homeserver``. JSON
columns hold compact ASCII JSON as text, which is also their form on the wire. The tables were once made by the app
``streams``, and still have the names from then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models

from streams.catalog import declarations as catalog
from streams.conf import stream_settings
from streams.core.declaration import StreamDeclaration
from streams.facts import Fact
from streams.holds.constraint import StreamHolds
from streams.registry import Sample, bind

__all__ = [
    "AccountDataChange",
    "CacheInvalidation",
    "DeviceListChange",
    "FederationItem",
    "GroupChange",
    "Presence",
    "PresenceDestination",
    "PushRuleChange",
    "PusherChange",
    "Receipt",
    "TagChange",
    "ToDeviceMessage",
    "Typing",
    "TypingUser",
    "UserSignatureChange",
]

#: Named in each model, so that a service which only reads rooms can import what uses these models without this app.
LABEL = "streams_catalog"


class _InCatalog(Fact.Meta):
    app_label = LABEL


def _holds(stream: StreamDeclaration) -> list[models.BaseConstraint]:
    # Rows of streams that keep only some of their facts may be deleted.
    is_fixed = not (stream.in_memory or stream.tables[0].newest_per)
    return [StreamHolds(stream=stream.name, sequence=stream.sequence, fixed=is_fixed)]


def _user(number: int, thread: int) -> str:
    return f"@load-{thread}-{number % 1000}:{stream_settings().server_name}"


def _sample(**values: Any) -> Sample:
    def sample(number: int, thread: int) -> Mapping[str, Any]:
        names = {"user": _user(number, thread), "number": number}
        return {key: value.format(**names) if isinstance(value, str) else value for key, value in values.items()}

    return sample


def _presence_sample(number: int, thread: int) -> dict[str, Any]:
    state = "online" if number % 2 else "unavailable"
    return {"user_id": _user(number, thread), "state": state, "currently_active": state == "online"}


@bind(catalog.PRESENCE, sample=_presence_sample)
class Presence(Fact):
    """A user's presence from this fact on, with times in milliseconds. Only the newest row of each user is kept."""

    user_id = models.TextField()
    state = models.TextField(help_text="online, offline, unavailable or busy")
    last_active_ts = models.BigIntegerField(db_default=0)
    last_federation_update_ts = models.BigIntegerField(db_default=0)
    last_user_sync_ts = models.BigIntegerField(db_default=0)
    status_msg = models.TextField(null=True)
    currently_active = models.BooleanField(db_default=False)

    class Meta(_InCatalog):
        db_table = "streams_presence"
        indexes: ClassVar = [models.Index(fields=["user_id"], name="streams_presence_user")]
        constraints: ClassVar = _holds(catalog.PRESENCE)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.user_id} {self.state}"


@bind(catalog.PRESENCE_FEDERATION, sample=_sample(destination="s{number}.example", user_id="{user}"))
class PresenceDestination(Fact):
    """A server to which a user's presence is to be sent. The stream is in memory, and rows are deleted after five minutes."""

    destination = models.TextField()
    user_id = models.TextField()

    class Meta(_InCatalog):
        db_table = "streams_presencefederation"
        constraints: ClassVar = _holds(catalog.PRESENCE_FEDERATION)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.destination} {self.user_id}"


@bind(catalog.TYPING, sample=lambda number, thread: {"room_id": f"!r{number}:x", "user_ids": [_user(number, thread)]})
class Typing(Fact):
    """All users who are typing in a room from this fact on. The stream is in memory."""

    room_id = models.TextField()
    user_ids = ArrayField(models.TextField())

    class Meta(_InCatalog):
        db_table = "streams_typing"
        constraints: ClassVar = _holds(catalog.TYPING)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.room_id} {len(self.user_ids)}"


class TypingUser(models.Model):
    """A user who is typing in a room, until a given time.

    The table is unlogged, so a crash of the database empties it. The rows are no facts. The facts of ``Typing`` are
    made from these rows.
    """

    pk = models.CompositePrimaryKey("room_id", "user_id")
    room_id = models.TextField()
    user_id = models.TextField()
    since = models.DateTimeField()
    until = models.DateTimeField(db_index=True)

    class Meta:
        app_label = LABEL
        db_table = "streams_typinguser"

    def __str__(self) -> str:
        return f"{self.room_id} {self.user_id}"


@bind(
    catalog.RECEIPTS,
    sample=_sample(room_id="!load:localhost", receipt_type="m.read", user_id="{user}", event_id="$load-{number}"),
)
class Receipt(Fact):
    """The event up to which a user has read a room."""

    room_id = models.TextField()
    receipt_type = models.TextField()
    user_id = models.TextField()
    event_id = models.TextField()
    data = models.TextField(db_default="{}", help_text="JSON object")

    class Meta(_InCatalog):
        db_table = "streams_receipt"
        indexes: ClassVar = [models.Index(fields=["room_id", "user_id"], name="streams_receipt_room_user")]
        constraints: ClassVar = _holds(catalog.RECEIPTS)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.room_id} {self.user_id}"


@bind(catalog.PUSH_RULES, sample=_sample(user_id="{user}"))
class PushRuleChange(Fact):
    """A change of a user's push rules."""

    user_id = models.TextField()

    class Meta(_InCatalog):
        db_table = "streams_pushrulechange"
        indexes: ClassVar = [models.Index(fields=["user_id"], name="streams_pushrule_user")]
        constraints: ClassVar = _holds(catalog.PUSH_RULES)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.user_id}"


@bind(catalog.PUSHERS, sample=_sample(user_id="{user}", app_id="org.example.load", pushkey="key {number}"))
class PusherChange(Fact):
    """A pusher that was set or deleted."""

    user_id = models.TextField()
    app_id = models.TextField()
    pushkey = models.TextField()
    deleted = models.BooleanField(db_default=False)

    class Meta(_InCatalog):
        db_table = "streams_pusherchange"
        indexes: ClassVar = [models.Index(fields=["user_id"], name="streams_pusher_user")]
        constraints: ClassVar = _holds(catalog.PUSHERS)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.user_id} {self.app_id}"


@bind(catalog.DEVICE_LISTS, sample=_sample(entity="{user}"))
class DeviceListChange(Fact):
    """A user whose devices changed, or a server to which such a change must be sent."""

    entity = models.TextField(help_text="user ID or server name")

    class Meta(_InCatalog):
        db_table = "streams_devicelistchange"
        indexes: ClassVar = [models.Index(fields=["entity"], name="streams_devicelist_entity")]
        constraints: ClassVar = _holds(catalog.DEVICE_LISTS)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.entity}"


@bind(catalog.TO_DEVICE, sample=_sample(entity="{user}"))
class ToDeviceMessage(Fact):
    """A recipient of messages to devices: a local user or a server. A fact has a row for each recipient."""

    entity = models.TextField(help_text="local user ID or server name")

    class Meta(_InCatalog):
        db_table = "streams_todevicemessage"
        indexes: ClassVar = [models.Index(fields=["entity"], name="streams_todevice_entity")]
        constraints: ClassVar = _holds(catalog.TO_DEVICE)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.entity}"


_EDU = '{{"edu_type":"org.example.load","content":{{}},"origin":"load.invalid","destination":"s{number}.invalid"}}'


@bind(catalog.FEDERATION, sample=_sample(type="e", data=_EDU))
class FederationItem(Fact):
    """An item that a federation sender in another process has to send. The stream is in memory.

    An item is deleted when it was acknowledged.
    """

    type = models.TextField(help_text="k: EDU with a key, e: EDU, pd: presence with destinations")
    data = models.TextField(help_text="JSON")

    class Meta(_InCatalog):
        db_table = "streams_federation"
        constraints: ClassVar = _holds(catalog.FEDERATION)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.type}"


@bind(catalog.TAG_ACCOUNT_DATA, sample=_sample(user_id="{user}", room_id="!load:localhost", tags="{{}}"))
class TagChange(Fact):
    """All tags that a user has given a room, from this fact on."""

    user_id = models.TextField()
    room_id = models.TextField()
    tags = models.TextField(help_text="JSON object; travels as a string")

    class Meta(_InCatalog):
        db_table = "streams_tagchange"
        indexes: ClassVar = [models.Index(fields=["user_id"], name="streams_tag_user")]
        constraints: ClassVar = _holds(catalog.TAG_ACCOUNT_DATA)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.user_id} {self.room_id}"


@bind(catalog.ACCOUNT_DATA, sample=_sample(user_id="{user}", data_type="org.example.load"))
class AccountDataChange(Fact):
    """A change of a user's account data of one type, in a room, or globally if ``room_id`` is null."""

    user_id = models.TextField()
    room_id = models.TextField(null=True)
    data_type = models.TextField()

    class Meta(_InCatalog):
        db_table = "streams_accountdatachange"
        indexes: ClassVar = [models.Index(fields=["user_id"], name="streams_accountdata_user")]
        constraints: ClassVar = _holds(catalog.ACCOUNT_DATA)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.user_id} {self.data_type}"


@bind(
    catalog.GROUPS,
    sample=_sample(group_id="+load:localhost", user_id="{user}", content='{{"membership":"join","content":{{}}}}'),
)
class GroupChange(Fact):
    """A change of a user's membership of a group."""

    group_id = models.TextField()
    user_id = models.TextField()
    type = models.TextField(db_default="membership")
    content = models.TextField(help_text="JSON object")

    class Meta(_InCatalog):
        db_table = "streams_groupchange"
        indexes: ClassVar = [models.Index(fields=["user_id"], name="streams_group_user")]
        constraints: ClassVar = _holds(catalog.GROUPS)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.group_id} {self.user_id}"


@bind(catalog.USER_SIGNATURE, sample=_sample(user_id="{user}"))
class UserSignatureChange(Fact):
    """A change of a user's signatures of other users' keys."""

    user_id = models.TextField()

    class Meta(_InCatalog):
        db_table = "streams_usersignaturechange"
        indexes: ClassVar = [models.Index(fields=["user_id"], name="streams_usersignature_user")]
        constraints: ClassVar = _holds(catalog.USER_SIGNATURE)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.user_id}"


@bind(catalog.CACHES, sample=lambda number, thread: {"cache_name": "load", "keys": [f"{thread}", f"{number}"]})
class CacheInvalidation(Fact):
    """A fact of the stream ``caches``: a key of a cache whose value must be dropped.

    Null ``keys`` mean the whole cache.
    """

    cache_name = models.TextField()
    keys = ArrayField(models.TextField(), null=True)
    invalidation_ts = models.BigIntegerField(
        db_default=models.expressions.RawSQL("(extract(epoch from clock_timestamp()) * 1000)::bigint", ()),
        help_text="milliseconds since the epoch",
    )

    class Meta(_InCatalog):
        db_table = "streams_cacheinvalidation"
        constraints: ClassVar = _holds(catalog.CACHES)

    def __str__(self) -> str:
        return f"{self.stream_id} {self.cache_name}"
