"""The ``caches`` stream: which cached values every other process must drop (pure)."""

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration

__all__ = ["CACHES"]

#: Row: ``[cache_name, keys or null, invalidation_ts in ms]``; null keys mean the whole cache.
CACHES = StreamDeclaration(
    name="caches",
    sequence="streams_cacheinvalidation_seq",
    tables=(
        FactTable(
            name="streams_cacheinvalidation",
            columns=(
                Column("cache_name", ColumnKind.TEXT),
                Column("keys", ColumnKind.TEXT_ARRAY, nullable=True),
                Column("invalidation_ts", ColumnKind.BIGINT),
            ),
        ),
    ),
)
