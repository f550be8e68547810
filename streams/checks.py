"""System checks of the engine: settings, the database driver, declared streams, models of facts, ``MIGRATION_MODULES``.

Checks of the streams' rows and sequences are in ``streams.row_checks``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections
from django.db.models import Model
from django.utils.module_loading import import_string

from streams import registry
from streams.conf import StreamSettings, stream_settings
from streams.core import lookup
from streams.core.declaration import quoted
from streams.core.names import check_name
from streams.db import driver
from streams.db.session_settings import RELIED_ON
from streams.declared_settings import declared, out_of_bounds
from streams.facts import Fact, FactQuerySet, keys_that_cascade
from streams.models import StreamPosition
from streams.models.read_only import ReadOnlyQuerySet
from streams.replication.errors import BadAddress, BadRights
from streams.replication.protocol.access import networks_of
from streams.replication.protocol.commands import LINE_LIMIT_BYTES
from streams.replication.protocol.rights import RightsTable
from streams.runtime.command_line import SITE_CHECKS
from streams.stream_object import Stream

#: What a name of a table or column has not, and what a sequence has.
_UNUSABLE = re.compile(r'[%"\0]')
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_CHECKOUT = Path(__file__).resolve().parent.parent
_OURS = "REPLSITE_"
#: As documents called what a project's settings import and merge into MIGRATION_MODULES.
_OF_PROJECTS = {"MIGRATIONS", "MIGRATION_MODULES"}
#: Declarations of other apps, by name: a project may have these settings and not the app, as the embedded server's has.
_OTHERS = ("replsite.site_settings.SiteSettings", "pipeline.pipeline_settings.PipelineSettings")


@register(SITE_CHECKS)
def check_migration_modules(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds apps of this program whose migrations Django cannot find.

    Django would create none of their tables, and report no error. Only a checkout has migrations outside of their apps.
    An app of the user's project may have the same label as an app of this program, such as ``events``. Such an app is
    not reported.
    """
    mapped: dict[str, str] = getattr(settings, "MIGRATION_MODULES", {})
    return [
        Error(
            f"MIGRATION_MODULES does not say where the migrations of {app.label!r} are, so its tables would never be made.",
            hint="In the settings: from migrations import MIGRATION_MODULES (and merge it with your own mapping).",
            id="streams.E001",
        )
        for app in apps.get_app_configs()
        if mapped.get(app.label) != f"migrations.{app.label}" and _has_migrations_elsewhere(app)
    ]


def _has_migrations_elsewhere(app: AppConfig) -> bool:
    at = _CHECKOUT.joinpath(*app.name.split("."))
    return Path(app.path) == at and (_CHECKOUT / "migrations" / app.label).is_dir() and not (at / "migrations").is_dir()


@register(SITE_CHECKS)
def check_driver(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds databases whose engine or driver streams cannot work on. Opens no connection."""
    alias = stream_settings().database
    wrapper: Any = connections[alias]
    if wrapper.vendor != "postgresql":
        text = f"Streams need PostgreSQL, and the database {alias!r} is {wrapper.vendor}."
        hint = 'In DATABASES, give it "ENGINE": "django.db.backends.postgresql", and the address of a server.'
        return [] if apps.is_installed("replsite") else [Error(text, hint=hint, id="streams.E031")]  # replsite.E001
    used = wrapper.Database.__name__.partition(".")[0]
    if used != driver.NAME:
        text = (
            f"The engine of the database {alias!r} connects with {used}, but Django and streams use {driver.NAME} here."
        )
        hint = f"Uninstall {driver.NAME}, or use an ENGINE that connects with it."
        return [Error(text, hint=hint, id="streams.E030")]
    if wrapper.settings_dict["OPTIONS"].get("server_side_binding"):
        text = f"The database {alias!r} has the option server_side_binding, with which an append cannot be one message."
        hint = (
            "Remove server_side_binding from its OPTIONS; without it, Django writes values into the statements' text."
        )
        return [Error(text, hint=hint, id="streams.E032")]
    return []


@register(Tags.database)
def check_session(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Finds settings and objects of a database with which our sessions fail, or are not safe.

    Runs with ``check --database`` and with ``migrate``. Each of the following is reported:

    * Behind a pooler, sessions begin with settings that our statements cannot work with, such as ``array_nulls = off``.
      Sessions of others set these for themselves, but a pooler lends other sessions for the next transactions.
    * The streams' database has another encoding than UTF-8, so some texts cannot be stored.
    * Every role may make functions in our schema. A function ``lower(varchar)`` would be called instead of
      ``lower(text)``, with the rights of the site.
    * Row-level security hides facts. A reader's position would pass over the hidden facts.
    * A table of facts is a view or a foreign table. The triggers of such a table may report rows as inserted that they
      did not insert.
    """
    found: list[CheckMessage] = []
    for alias in databases or ():
        if connections[alias].vendor != "postgresql":
            continue
        with connections[alias].cursor() as cursor:
            has_streams = alias in {stream_settings().database, *(stream.database for stream in registry.all_streams())}
            if has_streams and (refusal := driver.wrong_encoding(connections[alias].connection)):
                found.append(Error(refusal, id="streams.E035"))
            if connections[alias].settings_dict.get("DIRECT"):
                found += _settings_behind_pooler(cursor, alias)
            cursor.execute(
                "SELECT n.nspname FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) AS given "
                "WHERE n.nspname = ANY (current_schemas(false)) AND given.grantee = 0 AND given.privilege_type = 'CREATE'"
            )
            for (schema,) in cursor.fetchall():
                text = f"Every role that may connect to the database {alias!r} may make functions in the schema {schema!r}."
                hint = f"One may stand in for a function that the site calls: REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC."
                found.append(Warning(text, hint=hint, id="streams.W018"))
            of_streams = {table.name for stream in registry.all_streams() for table in stream.declaration.tables}
            tables = sorted(map(quoted, {*of_streams, StreamPosition._meta.db_table}))
            cursor.execute(
                "SELECT name FROM unnest(%s::text[]) AS name WHERE row_security_active(to_regclass(name))",
                [tables],
            )
            for (table,) in cursor.fetchall():
                text = f"Policies of the table {table[1:-1]} hide rows from the role of the database {alias!r}."
                hint = f"Readers would pass over hidden facts: ALTER TABLE {table} DISABLE ROW LEVEL SECURITY."
                found.append(Warning(text, hint=hint, id="streams.W019"))
            cursor.execute(
                "SELECT relname, CASE relkind WHEN 'f' THEN 'foreign table' ELSE 'view' END FROM pg_class "
                "WHERE oid = ANY (SELECT to_regclass(name) FROM unnest(%s::text[]) AS name) "
                "AND relkind IN ('v', 'm', 'f') ORDER BY relname",
                [tables],
            )
            for table, kind in cursor.fetchall():
                text = f"{table} in the database {alias!r} is a {kind}, where a stream has its facts."
                hint = "A trigger of it may lose rows that are acknowledged: append to an ordinary table, and read from a view."
                found.append(Warning(text, hint=hint, id="streams.W020"))
    return found


def _settings_behind_pooler(cursor: Any, alias: str) -> Iterator[CheckMessage]:
    cursor.execute("SELECT name, reset_val FROM pg_settings WHERE name = ANY(%s)", [list(RELIED_ON)])
    for name, value in cursor.fetchall():
        is_exact = name == "extra_float_digits" and int(value) > 0
        if not value.startswith(RELIED_ON[name]) and not is_exact:
            text = f"Sessions of the database {alias!r} begin with {name} = {value}, and a pooler lends them."
            hint = f"Statements rely on {RELIED_ON[name]}: ALTER ROLE … SET {name} = '{RELIED_ON[name]}'."
            yield Error(text, hint=hint, id="streams.E033")


@register(SITE_CHECKS)
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds invalid writer names, and writers of unknown streams."""
    conf = stream_settings()
    if not _are_writers(conf.writers):
        hint = 'For instance {"events": ["master", "web-{n}"]}.'
        text = "REPLSITE_WRITERS must give each stream a list of names."
        return [Error(text, hint=hint, id="streams.E016")]
    found: list[CheckMessage] = []
    for name in [conf.writer, *(writer for writers in conf.writers.values() for writer in writers)]:
        try:
            check_name(name)
        except ValueError as error:
            found.append(Error(str(error), hint="See REPLSITE_WRITER and REPLSITE_WRITERS.", id="streams.E002"))
    for stream in set(conf.writers) - set(registry.names()):
        hint = f"Known streams: {', '.join(registry.names())}."
        found.append(Error(f"REPLSITE_WRITERS names the unknown stream {stream!r}.", hint=hint, id="streams.E003"))
    found += _streams_elsewhere(conf.database)
    found += _writers_of_shared_sequences(conf.writers)
    if conf.writer == "":
        found.append(Warning("REPLSITE_WRITER is empty.", id="streams.W001"))
    return found


def _are_writers(writers: Any) -> bool:
    return isinstance(writers, Mapping) and all(
        isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) for names in writers.values()
    )


def _streams_elsewhere(database: str) -> list[CheckMessage]:
    return [
        Warning(
            f"The router sends facts of stream {stream.name!r} to database {stream.database!r}, but servers, followers and pages "
            f"read {database!r}, which REPLSITE_DATABASE or the router names. They do not see these facts.",
            hint="Route the app streams to the same database, or set REPLSITE_DATABASE to it.",
            id="streams.W017",
        )
        for stream in registry.all_streams()
        if stream.database != database
    ]


def _writers_of_shared_sequences(writers: Mapping[str, Sequence[str]]) -> list[CheckMessage]:
    # If two such streams have the same writers, an append to one also moves the position of the other. If their writers
    # differ, the position of the other may stay behind.
    return [
        Warning(
            f"REPLSITE_WRITERS gives {stream.name!r} other writers than {other.name!r}, which shares its sequence: the position "
            f"of one may stay behind while the other is written.",
            hint="Name the same writers for both.",
            id="streams.W002",
        )
        for stream in registry.all_streams()
        for other in stream.sharing
        if stream.name < other.name and set(writers.get(stream.name, ["*"])) != set(writers.get(other.name, ["*"]))
    ]


@register(SITE_CHECKS)
def check_names_of_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds settings whose names begin as ours do, and that nothing reads."""
    given = _without_prefix(dir(settings)) - _OF_PROJECTS
    known = _names_of(StreamSettings)
    if given <= known:
        return []
    known = known.union(*(_names_of(import_string(kind)) for kind in _OTHERS))
    found: list[CheckMessage] = []
    for name in sorted(given - known):
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {_OURS}{near[0]}? " if near else ""
        text = f"The settings have {_OURS}{name}, which nothing reads."
        found.append(Warning(text, hint=f"{hint}docs/reference/settings.md lists all.", id="streams.W024"))
    return found


def _names_of(kind: type) -> set[str]:
    return _without_prefix(name for setting, _, how in declared(kind) for name in (setting, how.former))


def _without_prefix(names: Iterable[str]) -> set[str]:
    return {name.removeprefix(_OURS) for name in names if name.startswith(_OURS)}


@register(SITE_CHECKS)
def check_wire_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds values out of bounds or that contradict each other, invalid networks, and missing TLS files."""
    conf = stream_settings()
    found: list[CheckMessage] = [Error(text, hint=hint, id="streams.E010") for text, hint in out_of_bounds(conf)]
    if not found:
        found += _contradictions(conf)
    try:
        networks_of(conf.plain_networks)
    except BadAddress as error:
        found.append(Error(str(error), hint="See docs/how-to/tls.md.", id="streams.E011"))
    try:
        RightsTable(conf.wire_rights)
    except BadRights as error:
        found.append(Error(str(error), hint="See docs/how-to/tls.md.", id="streams.E034"))
    return [*found, *_check_tls_files(conf)]


def _contradictions(conf: StreamSettings) -> Iterator[CheckMessage]:
    if conf.ping_timeout_seconds <= conf.ping_interval_seconds:
        text = "REPLSITE_PING_TIMEOUT_SECONDS must be larger than REPLSITE_PING_INTERVAL_SECONDS."
        yield Error(text, hint="The protocol uses 5 and 15.", id="streams.E004")
    if conf.line_limit_bytes > LINE_LIMIT_BYTES:
        text = f"REPLSITE_LINE_LIMIT_BYTES is more than {LINE_LIMIT_BYTES}: clients of version 1.43 end the connection."
        yield Warning(text, hint="Lower it, unless all followers are ours.", id="streams.W010")
    if 0 < conf.retention_longest_seconds < conf.retention_shortest_seconds:
        text = "REPLSITE_RETENTION_LONGEST_SECONDS is less than REPLSITE_RETENTION_SHORTEST_SECONDS."
        yield Error(text, hint="Let rooms choose a time between the two.", id="streams.E015")


def _check_tls_files(conf: StreamSettings) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if conf.tls_client_ca and not (conf.tls_certificate and conf.tls_key):
        text = "REPLSITE_TLS_CLIENT_CA is set, but REPLSITE_TLS_CERTIFICATE or REPLSITE_TLS_KEY is not."
        found.append(Warning(text, hint="The port needs all three; see docs/how-to/tls.md.", id="streams.W011"))
    for name in ("tls_certificate", "tls_key", "tls_client_ca", "tls_server_ca"):
        file = getattr(conf, name)
        if file and not Path(file).is_file():
            text = f"REPLSITE_{name.upper()} names {file}, where there is no file."
            found.append(Error(text, hint="Name a PEM file that this process may read.", id="streams.E012"))
    return found


@register(SITE_CHECKS)
def check_declarations(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds declared tables without a model, columns that their table lacks, and names that statements cannot have."""
    found: list[CheckMessage] = []
    for stream in registry.all_streams():
        models = {model._meta.db_table: model for model in stream.models}
        for table in stream.declaration.tables:
            model = models.get(table.name)
            if model is None:
                text = (
                    f"Stream {stream.name!r} declares table {table.name!r}, but no model of that table is bound to it."
                )
                found.append(Error(text, hint="Decorate the model with streams.registry.bind.", id="streams.E005"))
                continue
            columns = {field.column for field in model._meta.concrete_fields}
            wanted = {table.id_column, table.writer_column, table.received_column, *(c.name for c in table.stored)}
            wanted |= {table.then_by} if table.then_by else set()
            found += _unusable_names(stream, {table.name, *wanted, *columns})
            found += [
                Error(
                    f"Stream {stream.name!r}: table {table.name!r} has no column {name!r}.",
                    obj=model,
                    id="streams.E006",
                )
                for name in sorted(wanted - columns)
            ]
    return found


def _unusable_names(stream: Stream, names: Collection[str]) -> Iterator[CheckMessage]:
    # Django does not escape a name: a percent sign in it begins a parameter, and a double quote ends the name.
    hint = "Choose another with db_table or db_column. A schema is named by search_path, not in a table's name."
    for name in sorted(filter(_UNUSABLE.search, names)):
        text = f"Stream {stream.name!r}: the name {name!r} has a percent sign or a double quote in it."
        yield Error(text, hint=hint, id="streams.E036")
    if not _PLAIN.fullmatch(stream.declaration.sequence):
        text = f"Stream {stream.name!r}: the sequence {stream.declaration.sequence!r} would need quotes in SQL."
        yield Error(text, hint="Use lower-case letters, digits and underscores.", id="streams.E036")


@register(SITE_CHECKS)
def check_facts(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds facts without a stream, foreign keys that would delete or change facts, and managers that would change them."""
    models = [model for stream in registry.all_streams() for model in stream.models if issubclass(model, Fact)]
    proxies = [model for model in apps.get_models() if model._meta.proxy and issubclass(model, tuple(models))]
    found: list[CheckMessage] = [
        Warning(
            f"{model.__name__} is a Fact, and no stream is declared for it, so nothing can be appended.",
            hint='Write @stream("NAME") above the class, or make it abstract.',
            obj=model,
            id="streams.W022",
        )
        for model in apps.get_models()
        if issubclass(model, Fact) and not model._meta.proxy and not _is_declared(model)
    ]
    for model in dict.fromkeys([*models, *proxies]):
        found += [
            Warning(
                f"{model.__name__}.{key.name} has an on_delete that would delete or change facts: deleting a "
                f"{key.related_model._meta.object_name} that facts point to is refused by the database.",
                hint="Say on_delete=models.PROTECT, or models.DO_NOTHING with db_constraint=False.",
                obj=model,
                id="streams.W012",
            )
            for key in keys_that_cascade(model)
            if not model._meta.proxy
        ]
        found += [
            Warning(
                f"{model.__name__}.{name} is a manager whose bulk_create does not append.",
                hint="Build it on streams.facts.FactQuerySet: MyQuerySet(FactQuerySet), then MyQuerySet.as_manager().",
                obj=model,
                id="streams.W013",
            )
            for name in _managers_that_write(model)
        ]
    return found


def _is_declared(model: type[Model]) -> bool:
    tables = {table.name for stream in registry.all_streams() for table in stream.declaration.tables}
    return model._meta.db_table in tables or model._meta.label in {label for _, label in lookup.clashes}  # E019


def _managers_that_write(model: type[Model]) -> list[str]:
    safe = (FactQuerySet, ReadOnlyQuerySet)
    return [manager.name for manager in model._meta.managers if not issubclass(_queryset_of(manager), safe)]


def _queryset_of(manager: Any) -> type[Any]:
    try:
        return type(manager.all())
    except Exception:  # noqa: BLE001 - a manager of the project may work only where a tenant is chosen
        return cast("type[Any]", manager._queryset_class)
