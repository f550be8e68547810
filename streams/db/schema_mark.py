"""Suffixes that tell sites in different schemas of one database apart (pure).

Tables, sequences and rows belong to a schema. Channels of NOTIFY and advisory locks belong to the whole database, so
their names carry the schema in which the site has its tables. In ``public`` they carry nothing: there, processes of an
older version without suffixes use the same names.
"""

from __future__ import annotations

__all__ = ["SCHEMA_MARK", "marked_channel", "marked_lock"]

#: A SQL expression: empty for a site in ``public``, else a hash of its schema's name. Before the first migration it uses
#: the schema in which the tables are going to be created.
SCHEMA_MARK = """(
    SELECT CASE WHEN name = 'public' THEN '' ELSE to_hex(hashtextextended(name, 0)) END FROM (
        SELECT coalesce(
            (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.oid = to_regclass('streams_streamposition')),
            current_schema(), 'public'
        )::text AS name
    ) AS site
)"""


def marked_channel(channel: str, mark: str) -> str:
    """Returns the channel of a site with that mark."""
    return f"{channel}_{mark}" if mark else channel


def marked_lock(name: str) -> str:
    """Returns a SQL expression for the key of the site's lock on ``name``, a SQL expression of type text."""
    return f"hashtextextended({name} || {SCHEMA_MARK}, 0)"
