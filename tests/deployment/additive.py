"""What a migration may do while processes of the version before run on: the rules of ``docs/explanation/migrations.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db.migrations import Migration
from django.db.migrations import operations as django_operations
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation

__all__ = ["ROOMS", "newer_than", "refusals"]

ROOMS = ("streams", "streams_catalog", "state", "events", "pipeline", "replsite_api")
#: What begins the sentence in a migration's docstring that tells why its SQL disturbs no older process.
REASON = "Older processes:"
#: What begins the sentence in a migration's docstring that tells why the site is stopped before it: no older process runs on.
STOPPED = "The site is stopped:"
_WITHOUT_TABLES = (django_operations.AlterModelOptions, django_operations.AlterModelManagers)
_NEW = (django_operations.CreateModel,)


def newer_than(leaves: dict[str, str]) -> list[Migration]:
    """Our migrations that come after these, in the order in which they are applied."""
    loader = MigrationLoader(None)
    older = {node for leaf in leaves.items() for node in loader.graph.forwards_plan(leaf)}
    plan = [node for leaf in loader.graph.leaf_nodes() for node in loader.graph.forwards_plan(leaf)]
    newer = dict.fromkeys(node for node in plan if node not in older and node[0] in ROOMS)
    return [loader.disk_migrations[node] for node in newer]


def refusals(migrations: Iterable[Migration]) -> list[str]:
    """A line for each operation that processes of the version before could not bear; tables made by these are free."""
    migrations = list(migrations)
    made = {
        (migration.app_label, operation.name_lower)
        for migration in migrations
        for operation in migration.operations
        if isinstance(operation, _NEW)
    }
    return [
        f"{migration.app_label}.{migration.name}: {type(operation).__name__}: {why}"
        for migration in migrations
        if STOPPED not in _told(migration)
        for operation in _plain(migration.operations)
        if (why := _refusal(migration, operation, made))
    ]


def _plain(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Operations on the database; what changes Django's picture of it alone is none."""
    for operation in operations:
        if isinstance(operation, django_operations.SeparateDatabaseAndState):
            yield from _plain(operation.database_operations)
        else:
            yield operation


def _refusal(migration: Migration, operation: Operation, made: set[tuple[str, str]]) -> str:
    if isinstance(operation, (*_NEW, *_WITHOUT_TABLES)):
        return ""
    if isinstance(operation, (django_operations.RunSQL, django_operations.RunPython)):
        return _unexplained(migration)
    table = getattr(operation, "model_name_lower", None) or getattr(operation, "name_lower", "")
    if (migration.app_label, table) in made:
        return ""
    return _on_older_table(migration, operation)


def _on_older_table(migration: Migration, operation: Operation) -> str:
    if isinstance(operation, AddIndexConcurrently):
        return "needs atomic = False" if migration.atomic else ""
    if isinstance(operation, django_operations.AddIndex):
        return "locks the table against writing while it is built: use AddIndexConcurrently"
    if isinstance(operation, django_operations.AddField):
        return _unfilled(migration, operation)
    return "older processes use the table as it was: do it in the version after the one that stopped using it"


def _told(migration: Migration) -> str:
    return sys.modules[type(migration).__module__].__doc__ or ""


def _unexplained(migration: Migration) -> str:
    return "" if REASON in _told(migration) else f"its docstring does not tell why ({REASON!r} …)"


def _unfilled(migration: Migration, operation: django_operations.AddField) -> str:
    field = operation.field
    if (field.unique or field.db_index) and _unexplained(migration):
        return "an index on a table that is there: add it with AddIndexConcurrently"
    if field.null or field.has_db_default() or field.many_to_many:
        return ""
    return "older processes insert rows without it: null=True or db_default"
