"""The plain homeserver streams, declared (pure)."""

from streams.catalog.account_data import ACCOUNT_DATA, TAG_ACCOUNT_DATA
from streams.catalog.caches import CACHES
from streams.catalog.devices import DEVICE_LISTS, TO_DEVICE, USER_SIGNATURE
from streams.catalog.ephemeral import RECEIPTS, TYPING
from streams.catalog.federation import FEDERATION
from streams.catalog.groups import GROUPS
from streams.catalog.presence import PRESENCE, PRESENCE_FEDERATION
from streams.catalog.push import PUSH_RULES, PUSHERS
from streams.core.declaration import StreamDeclaration

__all__ = [
    "ACCOUNT_DATA",
    "CACHES",
    "DEVICE_LISTS",
    "FEDERATION",
    "GROUPS",
    "PRESENCE",
    "PRESENCE_FEDERATION",
    "PUSHERS",
    "PUSH_RULES",
    "RECEIPTS",
    "TAG_ACCOUNT_DATA",
    "TO_DEVICE",
    "TYPING",
    "USER_SIGNATURE",
    "declarations",
]


def declarations() -> tuple[StreamDeclaration, ...]:
    """All streams of this room, in the order of the protocol's stream table."""
    return (
        PRESENCE,
        PRESENCE_FEDERATION,
        TYPING,
        RECEIPTS,
        PUSH_RULES,
        PUSHERS,
        CACHES,
        DEVICE_LISTS,
        TO_DEVICE,
        FEDERATION,
        TAG_ACCOUNT_DATA,
        ACCOUNT_DATA,
        GROUPS,
        USER_SIGNATURE,
    )
