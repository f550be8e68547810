"""The streams ``presence`` and ``presence_federation`` (pure)."""

from streams.core.declaration import MAIN_PROCESS, Column, ColumnKind, FactTable, StreamDeclaration

__all__ = ["PRESENCE", "PRESENCE_FEDERATION", "PRESENCE_STATES"]

#: What ``state`` may be.
PRESENCE_STATES = frozenset({"online", "offline", "unavailable", "busy"})

#: Row: ``[user_id, state, last_active_ts, last_federation_update_ts, last_user_sync_ts, status_msg or null,
#: currently_active]``, times in ms. The table is the present state of all users: only the newest row of each is kept.
PRESENCE = StreamDeclaration(
    name="presence",
    announced_as=MAIN_PROCESS,
    sequence="streams_presence_seq",
    trimmable=False,
    tables=(
        FactTable(
            name="streams_presence",
            columns=(
                Column("user_id", ColumnKind.TEXT),
                Column("state", ColumnKind.TEXT),
                Column("last_active_ts", ColumnKind.BIGINT),
                Column("last_federation_update_ts", ColumnKind.BIGINT),
                Column("last_user_sync_ts", ColumnKind.BIGINT),
                Column("status_msg", ColumnKind.TEXT, nullable=True),
                Column("currently_active", ColumnKind.BOOLEAN),
            ),
            newest_per="user_id",
        ),
    ),
)

#: Row: ``[destination, user_id]``: tell that server the user's presence. A fact has a row per pair.
PRESENCE_FEDERATION = StreamDeclaration(
    name="presence_federation",
    announced_as=MAIN_PROCESS,
    sequence="streams_presencefederation_seq",
    in_memory=True,
    trimmable=False,
    tables=(
        FactTable(
            name="streams_presencefederation",
            columns=(Column("destination", ColumnKind.TEXT), Column("user_id", ColumnKind.TEXT)),
        ),
    ),
)
