"""System checks of streams that are declared by a class: their names, the versions of their rows, and their sequences."""

from __future__ import annotations

import itertools
import pkgutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, router
from django.db.migrations import AddConstraint, AlterConstraint, CreateModel
from django.db.migrations.loader import MigrationLoader

from streams.core import lookup
from streams.core.bound import BoundStream
from streams.core.declaration import quoted
from streams.core.named_rows import upcasts_of
from streams.db.advice import MIGRATE, about_missing_relation
from streams.holds.weaknesses import losing
from streams.runtime.command_line import SITE_CHECKS
from streams.sequence import StreamSequence
from streams.writing.key_columns import FIX, loose_keys


@register(SITE_CHECKS)
def check_names(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds classes that declare a stream under a name that another class has."""
    return [
        Error(
            f"{label} declares the stream {name!r}, which {_labels(lookup.get(name))} declares already.",
            hint="Give one of the two another name: followers know a stream by its name alone.",
            id="streams.E019",
        )
        for name, label in dict.fromkeys(lookup.clashes)
    ]


def _labels(stream: BoundStream) -> str:
    return ", ".join(model._meta.label for model in stream.models)


# --- rows ---------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """The row of one version: where it is declared, and the kind of each field."""

    where: str
    version: int
    fields: dict[str, str]


@register(SITE_CHECKS)
def check_rows(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds rows that changed without a new version, and older versions without an upcast.

    The rows of earlier versions are known from the migrations, because each ``StreamSequence`` in a migration contains
    the row of its version.
    """
    found: list[CheckMessage] = []
    for stream in lookup.all_streams():
        for sequence in _sequences_of(stream):
            model = stream.models[0]
            now = _Row(model._meta.label, sequence.version, sequence.row)
            earlier = [
                row for row in _rows_in_migrations(model._meta.app_label, stream.name) if row.version <= now.version
            ]
            found += _changed(stream.name, model, now, earlier)
            found += _without_upcast(stream.name, model, now, earlier)
    return found


def _changed(name: str, model: Any, now: _Row, earlier: Sequence[_Row]) -> Iterator[CheckMessage]:
    for row in earlier:
        if row.version == now.version and row.fields != now.fields:
            differ = sorted(dict(row.fields.items() ^ now.fields.items()))
            yield Error(
                f"Stream {name!r}: version {now.version} of the row was another one in migration {row.where}: "
                f"{', '.join(differ)} differ.",
                hint=f"Say version={now.version + 1}, and what becomes of an older row: @upcast({model.__name__}, "
                f"{now.version}). If no fact was ever appended, make that migration anew instead.",
                obj=model,
                id="streams.E020",
            )
            return


def _without_upcast(name: str, model: Any, now: _Row, earlier: Sequence[_Row]) -> Iterator[CheckMessage]:
    versions = {row.version: row for row in [*earlier, now]}
    ascending = sorted(versions)
    for older, newer in itertools.pairwise(ascending):
        missing = sorted(set(versions[newer].fields) - set(versions[older].fields))
        if missing and not any(number in upcasts_of(name).functions for number in range(older, newer)):
            yield Warning(
                f"Stream {name!r}: rows of version {older} lack {', '.join(missing)} of version {newer}, and nothing says what "
                f"they get.",
                hint=f"Declare it: @upcast({model.__name__}, {older}). Followers, dead letters and records may have such rows.",
                obj=model,
                id="streams.W015",
            )


def _sequences_of(stream: BoundStream) -> list[StreamSequence]:
    given = [constraint for model in stream.models for constraint in model._meta.constraints]
    return [constraint for constraint in given if isinstance(constraint, StreamSequence)]


def _rows_in_migrations(app_label: str, stream: str) -> list[_Row]:
    return [
        _Row(where, sequence.version, sequence.row)
        for where, sequence in _sequences_in_migrations(app_label)
        if sequence.stream == stream
    ]


def _sequences_in_migrations(app_label: str) -> list[tuple[str, StreamSequence]]:
    package = MigrationLoader.migrations_module(app_label)[0]
    try:
        folder = import_module(package) if package else None
    except ModuleNotFoundError:  # the app has no migrations yet
        folder = None
    found: list[tuple[str, StreamSequence]] = []
    for module in sorted(pkgutil.iter_modules(getattr(folder, "__path__", [])), key=lambda module: module.name):
        migration = getattr(import_module(f"{package}.{module.name}"), "Migration", None)
        for operation in getattr(migration, "operations", ()):
            given: Sequence[Any] = ()
            if isinstance(operation, CreateModel):
                given = operation.options.get("constraints", ())
            elif isinstance(operation, AddConstraint | AlterConstraint):
                given = [operation.constraint]
            found += [(f"{app_label}.{module.name}", part) for part in given if isinstance(part, StreamSequence)]
    return found


# --- sequences ----------------------------------------------------------------------------------------------------


@register(Tags.database)
def check_sequences(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    return [message for alias in databases or () for message in _missing_sequences(alias)]


def _missing_sequences(alias: str) -> Iterator[CheckMessage]:
    if connections[alias].vendor != "postgresql":
        return
    streams = [
        stream
        for stream in lookup.all_streams()
        if stream.models and router.allow_migrate_model(alias, stream.models[0]) and stream.models[0]._meta.managed
    ]
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT sequence FROM unnest(%s::text[], %s::text[]) AS given (sequence, name) "
            "WHERE to_regclass(name) IS NOT NULL AND to_regclass(sequence) IS NULL",
            [[s.declaration.sequence for s in streams], [quoted(s.models[0]._meta.db_table) for s in streams]],
        )
        missing = {sequence for (sequence,) in cursor.fetchall()}
    for stream in streams:
        sequence = stream.declaration.sequence
        if sequence in missing:
            hint = about_missing_relation(f'relation "{sequence}" does not exist')
            # A migration that is not applied yet may make the sequence, and an error would keep ``migrate`` from running.
            kind, number = (Warning, "streams.W016") if hint == MIGRATE else (Error, "streams.E021")
            text = f"Stream {stream.name!r}: database {alias!r} has its table, but not its sequence {sequence}."
            yield kind(text, hint=hint, obj=stream.models[0], id=number)


@register(Tags.database)
def check_holds(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Finds streams whose triggers or sequence let facts go around their holds, or whose keys cannot be locked.

    Runs when ``check_sequences`` does.
    """
    found: list[CheckMessage] = []
    hint = "Readers can miss facts: manage.py check_streams says what to do, and mends most of it with --repair."
    for alias in databases or ():
        if connections[alias].vendor != "postgresql":
            continue
        with connections[alias].cursor() as cursor:
            found += [
                # A warning: ``migrate`` may be about to mend it.
                Warning(f"{weak.subject}: {weak.problem}, in database {alias!r}.", hint=hint, id="streams.W021")
                for weak in losing(cursor)
            ]
            found += [
                Warning(f"Stream {name!r}: {problem}.", hint=FIX, id="streams.W023")
                for name, problem in loose_keys(cursor, lookup.all_streams())
            ]
    return found
