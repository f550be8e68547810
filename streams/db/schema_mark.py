"""Suffixes that tell sites in different schemas of one database apart (pure).

Tables, sequences and rows belong to a schema. Channels of NOTIFY and advisory locks belong to the whole database, so
their names get a suffix. The suffix is computed from the schema of the site's tables. For the schema ``public`` the
suffix is empty, so that processes of older versions, which had no suffixes, use the same names.
"""

from __future__ import annotations

#: A SQL expression for the suffix (the *mark*): empty for a site in ``public``, else a hash of its schema's name. Before the
#: first migration, the schema is the one in which the tables will be created.
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
    """Returns the name of the channel with the schema's suffix ``mark``. If the suffix is empty, the name stays as it is."""
    return f"{channel}_{mark}" if mark else channel


def marked_lock(name: str) -> str:
    """Returns a SQL expression for the key of an advisory lock of this site.

    ``name`` is the name of the lock, itself as a SQL expression of type text.
    """
    return f"hashtextextended({name} || {SCHEMA_MARK}, 0)"
