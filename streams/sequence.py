"""The sequence from which a stream takes its IDs, as a part of the model.

``makemigrations`` finds the sequence, and ``migrate`` makes it.

``streams.declare.stream`` adds a ``StreamSequence`` to the constraints of its model. PostgreSQL has no such constraint.
But Django keeps constraints in migrations, compares them with the model, and creates them with the table, which is all
that a sequence needs.

Migrations of projects have ``StreamSequence`` and ``CreateStreamSequence``. So their names and arguments stay, and what
they create serves every later version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS
from django.db.backends.ddl_references import Statement, Table
from django.db.migrations.operations import RunSQL
from django.db.models import BaseConstraint

from streams.core.declaration import quoted

if TYPE_CHECKING:
    from django.db.models import Model

_SUFFIX = "_stream_seq"
_LONGEST = 63 - len(_SUFFIX)

#: Creates the sequence, or takes over the sequence that the table already has. Such a sequence was made for another name of
#: the stream, or by a hand-written migration. A new sequence goes on after the facts of the table and after the positions of
#: an earlier stream of this name. So an ID is never given out twice. Position 1 means "empty": the first fact gets ID 2.
CREATE_SEQUENCE = """DO $stream$
DECLARE
    last bigint;
    owner oid := to_regclass(%(literal)s)::oid;
    kept text := (
        SELECT s.relname FROM pg_class s JOIN pg_class t ON t.oid = owner AND t.relnamespace = s.relnamespace
        WHERE s.relkind = 'S' AND (s.relname IN ('%(name)s', '%(before)s') OR EXISTS (
            SELECT FROM pg_depend d WHERE d.objid = s.oid AND d.refobjid = owner AND d.deptype = 'a'
            AND right(s.relname, %(length)s) = '%(suffix)s'))
        ORDER BY s.relname = '%(name)s' DESC LIMIT 1);
BEGIN
    IF kept IS NULL THEN
        CREATE SEQUENCE "%(name)s" AS bigint START WITH 2;
        SELECT greatest(max(%(column)s), -min(%(column)s)) INTO last FROM %(table)s;
        IF to_regclass('streams_streamposition') IS NOT NULL THEN
            SELECT greatest(last, max(abs(position))) INTO last FROM streams_streamposition WHERE stream = %(stream)s;
        END IF;
        IF last > 1 THEN
            PERFORM setval('"%(name)s"', last);
        END IF;
    ELSIF kept <> '%(name)s' THEN
        EXECUTE 'ALTER SEQUENCE ' || quote_ident(kept) || ' RENAME TO "%(name)s"';
    END IF;
    ALTER SEQUENCE "%(name)s" OWNED BY %(table)s.%(column)s;
END $stream$"""
#: Gives the sequence the name that it has after its table. It stays with the table, with the IDs that it gave out.
_REMOVE = """DO $stream$
BEGIN
    IF to_regclass('"%(name)s"') IS NOT NULL AND to_regclass('"%(before)s"') IS NULL THEN
        ALTER SEQUENCE "%(name)s" RENAME TO "%(before)s";
    END IF;
END $stream$"""


def sequence_of(name: str) -> str:
    """Returns the name of the sequence of the stream ``name``. The name is safe in SQL without quotes.

    Characters that would need quotes are replaced, and a long name is cut. Then a hash of the stream's name keeps the
    sequences of two streams apart.
    """
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
    if plain != name or not re.match(r"[a-z_]", plain) or len(plain) > _LONGEST:
        mark = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
        plain = f"_{plain[: _LONGEST - len(mark) - 2]}_{mark}"
    return plain + _SUFFIX


class MadeAfterTable(BaseConstraint):
    """A constraint of a model that PostgreSQL does not know: ``create_sql`` makes something that belongs to the table."""

    def __eq__(self, other: object) -> bool:
        return self.deconstruct() == other.deconstruct() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        """Defers ``create_sql`` until the table is created.

        Returns None, because nothing of it is part of the statement that creates the table.
        """
        schema_editor.deferred_sql.append(self.create_sql(model, schema_editor))

    def validate(self, model: type[Model], instance: Model, exclude: Any = None, using: str = DEFAULT_DB_ALIAS) -> None:
        """Does nothing: it has no condition on rows."""


class StreamSequence(MadeAfterTable):
    """The sequence of a stream, declared as a constraint of its model.

    ``version`` and ``row`` describe the stream's row. These two values change nothing in the database. A system check
    compares them with the model, and finds a row that changed without a new version.
    """

    non_db_attrs = (*BaseConstraint.non_db_attrs, "version", "row")

    def __init__(
        self, *, stream: str, version: int = 1, row: Mapping[str, str] | None = None, id_field: str = "stream_id"
    ) -> None:
        super().__init__(name=sequence_of(stream))
        self.stream = stream
        self.version = version
        self.row = dict(row or {})
        self.id_field = id_field

    def __repr__(self) -> str:
        return f"<StreamSequence {self.name} of stream {self.stream!r}, version {self.version}>"

    def deconstruct(self) -> tuple[str, tuple[()], dict[str, Any]]:
        given: dict[str, Any] = {"stream": self.stream, "version": self.version, "row": self.row}
        if self.id_field != "stream_id":
            given["id_field"] = self.id_field
        return "streams.sequence.StreamSequence", (), given

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        return self._statement(CREATE_SEQUENCE, model, schema_editor)

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        """Returns the statement that renames the sequence: the new name comes from the table, and not from the stream.

        The sequence is dropped with its table, and not before: a stream that is renamed, or declared again, must not give
        out an ID twice.
        """
        return self._statement(_REMOVE, model, schema_editor)

    def _statement(self, sql: str, model: Any, schema_editor: Any) -> Statement:
        return Statement(sql, **sequence_parts(self.stream, self.id_field, model, schema_editor))


def sequence_parts(stream: str, id_field: str, model: Any, schema_editor: Any) -> dict[str, Any]:
    """Returns the parts of ``CREATE_SEQUENCE`` for a stream whose facts are rows of the model."""
    table, quote = model._meta.db_table, schema_editor.quote_name
    return {
        "name": sequence_of(stream),
        "stream": _literal(stream),
        "table": Table(table, quote),
        "literal": Table(table, lambda name: _literal(quote(name))),
        "before": Table(table, sequence_of),
        "column": quote(model._meta.get_field(id_field).column),
        "length": len(_SUFFIX),
        "suffix": _SUFFIX,
    }


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class CreateStreamSequence(RunSQL):
    """Migration operation that makes the sequence of a stream by hand. New migrations do not need it.

    Old migrations that contain this operation stay valid. The operation does nothing if the table already has its
    sequence. Later the ``StreamSequence`` of the model takes over the sequence with its current value.
    """

    def __init__(self, table: str) -> None:
        name = sequence_of(table)
        has_one = (
            "SELECT FROM pg_depend d JOIN pg_class s ON s.oid = d.objid WHERE s.relkind = 'S' AND d.deptype = 'a' "
            f"AND d.refobjid = to_regclass({_literal(quoted(table))}) AND right(s.relname, {len(_SUFFIX)}) = '{_SUFFIX}'"
        )
        super().__init__(
            f"DO $stream$ BEGIN IF NOT EXISTS ({has_one}) THEN "
            f'CREATE SEQUENCE IF NOT EXISTS "{name}" AS bigint START WITH 2; END IF; END $stream$',
            f'DROP SEQUENCE IF EXISTS "{name}"',
        )
        self._table = table

    def deconstruct(self) -> tuple[str, list[str], dict[str, object]]:
        return type(self).__name__, [self._table], {}

    def describe(self) -> str:
        return f"Create the stream sequence of {self._table}"
