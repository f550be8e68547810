"""SQL for the keys by which several processes share a stream, and for the parts of these keys (pure)."""

from __future__ import annotations

from hashlib import sha256

from streams.core.declaration import NEWEST_PER_KINDS, StreamDeclaration, quoted
from streams.core.named_rows import NamedRow
from streams.errors import BadHandler
from streams.follow.part_plan import PARTS

LONGEST_KEY = 200


def key_sql(declaration: StreamDeclaration, by: str) -> str:
    """Returns the SQL expression for the text of a row's key. Raises ``BadHandler`` if the field cannot be a key."""
    (table, *others) = declaration.tables
    column = next((column for column in table.stored if column.key == by), None)
    if others or not isinstance(table.row, NamedRow) or column is None or column.kind not in NEWEST_PER_KINDS:
        raise BadHandler(
            f"Stream {declaration.name!r} cannot be shared by={by!r}: name a field of its class that is a text, a whole "
            f"number, a UUID, or a foreign key to one of these."
        )
    # Facts without a value are facts of one key.
    return f"coalesce({quoted(column.name)}::text, '')"


def short_key(key: str) -> str:
    """Returns a key's text as dead letters store it. An index takes no long texts."""
    return key if len(key) <= LONGEST_KEY else f"{key[:LONGEST_KEY]}… {sha256(key.encode()).hexdigest()}"


def part_sql(key: str) -> str:
    """Returns the SQL expression for the part of a key."""
    return f'(hashtextextended({key} COLLATE "C", 0) & {PARTS - 1})::int'
