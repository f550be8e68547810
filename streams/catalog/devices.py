"""The streams ``device_lists``, ``to_device`` and ``user_signature`` (pure).

``device_lists`` and ``user_signature`` share a sequence, so the position of both moves when either is written.
"""

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration

__all__ = ["DEVICE_LISTS", "TO_DEVICE", "USER_SIGNATURE"]

_DEVICE_SEQUENCE = "streams_devicelistchange_seq"

#: Row: ``[entity]``: a user whose devices changed, or the name of a server that has to be told.
DEVICE_LISTS = StreamDeclaration(
    name="device_lists",
    sequence=_DEVICE_SEQUENCE,
    tables=(FactTable(name="streams_devicelistchange", columns=(Column("entity", ColumnKind.TEXT),)),),
)

#: Row: ``[entity]``: a local user or a server with new messages to its devices. A fact has a row per recipient.
TO_DEVICE = StreamDeclaration(
    name="to_device",
    sequence="streams_todevicemessage_seq",
    tables=(FactTable(name="streams_todevicemessage", columns=(Column("entity", ColumnKind.TEXT),)),),
)

#: Row: ``[user_id]``: somebody's signature of another user's keys changed.
USER_SIGNATURE = StreamDeclaration(
    name="user_signature",
    sequence=_DEVICE_SEQUENCE,
    tables=(FactTable(name="streams_usersignaturechange", columns=(Column("user_id", ColumnKind.TEXT),)),),
)
