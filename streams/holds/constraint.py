"""The holds of a stream, as a part of the model. ``makemigrations`` finds them, and ``migrate`` installs the triggers.

class Meta:
    constraints = [StreamSequence(stream="orders"), StreamHolds(stream="orders")]
"""

from __future__ import annotations

from typing import Any

from django.db.backends.ddl_references import Statement
from django.db.migrations.operations import RunSQL

from streams.holds.installed_sql import DROP, FUNCTIONS, INSTALL
from streams.sequence import CREATE_SEQUENCE, MadeAfterTable, sequence_of, sequence_parts

__all__ = ["InstallHolds", "StreamHolds"]

_HOLD = (
    "SELECT streams_hold_table(%(literal)s, %(stream)s, %(source)s, %(id)s, %(writer)s, "
    "backward => %(backward)s, shared => %(shared)s, defaults => %(defaults)s, fixed => %(fixed)s)"
)
_CREATE = f"{INSTALL.replace('%', '%%')}; {_HOLD}"
_REMOVE = "SELECT streams_release_table(%(literal)s, %(stream)s)"


class StreamHolds(MadeAfterTable):
    """Declares that the rows of a model are facts of a stream whose open appends PostgreSQL knows (``streams.holds``).

    An INSERT into the table is an append then, in any language: the columns of ID and writer have defaults, a transaction
    holds its stream until it ends, and rows that go around the hold are refused, as are changes of facts.

    ``sequence`` is the sequence of the stream's IDs. By default it is that of ``StreamSequence``, and is made if it is not there:
    Django takes back constraints in any order. IDs of a ``backward`` stream are
    negative in the table. A table is ``shared`` if its positive IDs belong to one stream, and its negative IDs to another.
    Rows of a table that is not ``fixed`` may be deleted, and changed, but for their ID and writer. Of a stream's several
    tables, each but the first needs a ``name`` of its own.
    """

    def __init__(  # noqa: PLR0913 - parts of a declaration, all by keyword
        self,
        *,
        stream: str,
        sequence: str = "",
        id_field: str = "stream_id",
        writer_field: str = "instance_name",
        backward: bool = False,
        shared: bool = False,
        fixed: bool = True,
        name: str = "",
    ) -> None:
        super().__init__(name=name or sequence_of(stream).removesuffix("_seq") + "_holds")
        self.stream = stream
        self.sequence = sequence
        self.id_field = id_field
        self.writer_field = writer_field
        self.backward = backward
        self.shared = shared
        self.fixed = fixed

    def __repr__(self) -> str:
        return f"<StreamHolds of stream {self.stream!r}>"

    def deconstruct(self) -> tuple[str, tuple[()], dict[str, Any]]:
        """Returns the constraint's form in a migration file: its class, no positional arguments, and its keyword arguments."""
        usual = StreamHolds(stream=self.stream)
        given = {
            name: value for name, value in vars(self).items() if name in _OPTIONS and value != getattr(usual, name)
        }
        return "streams.holds.constraint.StreamHolds", (), {"stream": self.stream, **given}

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        """Returns the statements that install the functions if they are missing, and then the triggers of the table."""
        create = _CREATE if self.sequence else f"{CREATE_SEQUENCE}; {_CREATE}"
        return self._statement(create, model, schema_editor)

    def hold_sql(self, model: Any, schema_editor: Any) -> str:
        """Returns the statement that installs the triggers of the table, with all that is declared here."""
        return str(self._statement(_HOLD, model, schema_editor))

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        return self._statement(_REMOVE, model, schema_editor)

    def _statement(self, sql: str, model: Any, schema_editor: Any) -> Statement:
        quote, backward, shared = schema_editor.quote_name, str(self.backward).lower(), str(self.shared).lower()
        return Statement(
            sql,
            **sequence_parts(self.stream, self.id_field, model, schema_editor),
            source=_text(quote(self.sequence or sequence_of(self.stream))),
            id=_text(model._meta.get_field(self.id_field).column),
            writer=_text(model._meta.get_field(self.writer_field).column),
            backward=backward,
            shared=shared,
            fixed=str(self.fixed).lower(),
            defaults=str(not (self.shared and self.backward)).lower(),
        )


class InstallHolds(RunSQL):
    """Migration operation that installs the functions of holds, or replaces those of an older version."""

    def __init__(self) -> None:
        super().__init__(FUNCTIONS, DROP)

    def deconstruct(self) -> tuple[str, list[str], dict[str, object]]:
        """Returns the operation's form in a migration file."""
        return type(self).__name__, [], {}

    def describe(self) -> str:
        return "Install the functions of holds"


_OPTIONS = frozenset({"sequence", "id_field", "writer_field", "backward", "shared", "fixed", "name"})


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
