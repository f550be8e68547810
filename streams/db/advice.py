"""Advice on what to do about a missing database, table or sequence. The advice becomes the last line of a command's error.

These functions are called only after a failure, so they may take the time to read the migrations. If the migrations
cannot be read, they return the most likely advice.
"""

from __future__ import annotations

import re

from django.apps import apps
from django.conf import settings
from django.db import Error as DjangoError
from django.db import connections
from django.db.migrations.exceptions import (
    BadMigrationError,
    CircularDependencyError,
    InconsistentMigrationHistory,
    NodeNotFoundError,
)
from django.db.migrations.executor import MigrationExecutor

from streams.conf import stream_settings
from streams.core import lookup

_RELATION = re.compile(r'(?:relation|sequence) "(?:[^".]+\.)?([^"]+)" does not exist')
_DATABASE = re.compile(r'database "([^"]+)" does not exist')
_EMBEDDED = "replsite.postgres.backend"
_BROKEN = (BadMigrationError, CircularDependencyError, InconsistentMigrationHistory, NodeNotFoundError)
MIGRATE = "The database lacks tables of this version: run manage.py migrate."


def about_missing_database(text: str) -> str:
    """Returns advice if the error text says that the server runs but the database does not exist, else an empty text."""
    found = _DATABASE.search(text)
    if found is None:
        return ""
    if settings.DATABASES.get(stream_settings().database, {}).get("ENGINE") == _EMBEDDED:
        return "It was not made yet: run manage.py migrate."
    return (
        f'Make it (CREATE DATABASE "{found[1]}"), or correct DATABASES (or DATABASE_URL); then run manage.py migrate.'
    )


def about_missing_relation(text: str) -> str:
    """Returns advice on how to create the table, sequence or column that is missing according to the error text."""
    try:
        executor = MigrationExecutor(connections[stream_settings().database])
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            return MIGRATE
        state = executor.loader.project_state()
    except (DjangoError, *_BROKEN):
        return MIGRATE
    made = {model.options.get("db_table") or f"{app}_{name}" for (app, name), model in state.models.items()}
    found = _RELATION.search(text)
    name = found[1] if found is not None else ""
    if model := next((model for model in apps.get_models() if model._meta.db_table == name and name not in made), None):
        app = model._meta.app_label
        return f"No migration makes that table: run manage.py makemigrations {app}, then manage.py migrate."
    if found_stream := next((each for each in lookup.all_streams() if each.declaration.sequence == name), None):
        (model, *_) = found_stream.models
        options, kept = model._meta, state.models.get((model._meta.app_label, model._meta.model_name))
        known = [] if kept is None else [constraint.name for constraint in kept.options.get("constraints", ())]
        if name in {constraint.name for constraint in options.constraints} - {*known}:
            return (
                f"No migration makes that sequence: run manage.py makemigrations {options.app_label}, then manage.py "
                f"migrate."
            )
        return (
            f"All migrations are applied, and the sequence is not there. If it was renamed by hand, manage.py check_streams "
            f"--repair gives it its name back. If no migration makes it, add one with "
            f'migrations.RunSQL("CREATE SEQUENCE {name} START WITH 2"). If it was dropped by hand, make it by that statement, '
            f"then run manage.py check_streams --repair."
        )
    return "All migrations are applied, so it was dropped or renamed by hand, or lies in another schema: put it back."
