"""The streams ``push_rules`` and ``pushers`` (pure)."""

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration

__all__ = ["PUSHERS", "PUSH_RULES"]

#: Row: ``[user_id]``: the user's push rules changed.
PUSH_RULES = StreamDeclaration(
    name="push_rules",
    sequence="streams_pushrulechange_seq",
    tables=(FactTable(name="streams_pushrulechange", columns=(Column("user_id", ColumnKind.TEXT),)),),
)

#: Row: ``[user_id, app_id, pushkey, deleted]``.
PUSHERS = StreamDeclaration(
    name="pushers",
    sequence="streams_pusherchange_seq",
    tables=(
        FactTable(
            name="streams_pusherchange",
            columns=(
                Column("user_id", ColumnKind.TEXT),
                Column("app_id", ColumnKind.TEXT),
                Column("pushkey", ColumnKind.TEXT),
                Column("deleted", ColumnKind.BOOLEAN),
            ),
        ),
    ),
)
