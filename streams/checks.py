"""System checks of the engine: settings, declared streams, models of facts, and the setting ``MIGRATION_MODULES``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db.models import Model

from migrations import MIGRATION_MODULES
from streams import registry
from streams.conf import StreamSettings, stream_settings
from streams.core.names import check_name
from streams.facts import Fact, FactQuerySet, keys_that_cascade
from streams.models.read_only import ReadOnlyQuerySet
from streams.replication.errors import BadAddress
from streams.replication.protocol.access import networks_of
from streams.replication.protocol.commands import LINE_LIMIT_BYTES
from streams.replication.redis.later_version import version_of

__all__ = ["check_declarations", "check_facts", "check_migration_modules", "check_settings", "check_wire_settings"]


@register()
def check_migration_modules(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds apps without an entry in ``MIGRATION_MODULES``.

    Django would create none of their tables, without an error.
    """
    mapped: dict[str, str] = getattr(settings, "MIGRATION_MODULES", {})
    return [
        Error(
            f"MIGRATION_MODULES does not say where the migrations of {label!r} are, so its tables would never be made.",
            hint="In the settings: from migrations import MIGRATION_MODULES (and merge it with your own mapping).",
            id="streams.E001",
        )
        for label, module in MIGRATION_MODULES.items()
        if label in {name.rsplit(".", 1)[-1] for name in settings.INSTALLED_APPS} and mapped.get(label) != module
    ]


@register()
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds invalid writer names, writers of unknown streams, and impossible time-outs."""
    conf = stream_settings()
    if not _are_writers(conf.writers):
        hint = 'For instance {"events": ["master", "web-{n}"]}.'
        text = "REPLSITE_WRITERS must give each stream a list of names."
        return [Error(text, hint=hint, id="streams.E016")]
    found: list[CheckMessage] = []
    for name in [conf.instance, *(writer for writers in conf.writers.values() for writer in writers)]:
        try:
            check_name(name)
        except ValueError as error:
            found.append(Error(str(error), hint="See REPLSITE_INSTANCE and REPLSITE_WRITERS.", id="streams.E002"))
    for stream in set(conf.writers) - set(registry.names()):
        hint = f"Known streams: {', '.join(registry.names())}."
        found.append(Error(f"REPLSITE_WRITERS names the unknown stream {stream!r}.", hint=hint, id="streams.E003"))
    if not conf.ping_timeout_seconds > conf.ping_interval_seconds:  # true for NaN, too
        text = "REPLSITE_PING_TIMEOUT_SECONDS must be larger than REPLSITE_PING_INTERVAL_SECONDS."
        found.append(Error(text, hint="The protocol uses 5 and 15.", id="streams.E004"))
    found += _writers_of_shared_sequences(conf.writers)
    if conf.instance == "":
        found.append(Warning("REPLSITE_INSTANCE is empty.", id="streams.W001"))
    return found


def _are_writers(writers: Any) -> bool:
    return isinstance(writers, Mapping) and all(
        isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) for names in writers.values()
    )


def _writers_of_shared_sequences(writers: Mapping[str, Sequence[str]]) -> list[CheckMessage]:
    """Finds streams that share a sequence and have different writers.

    If the writers are the same, an append to one stream also moves the positions of the others. If they differ, the
    position of one stream may stay behind.
    """
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


#: Settings that must be above zero.
_POSITIVE = (
    "announce_interval_seconds", "heartbeat_seconds", "ping_interval_seconds", "line_limit_bytes",
    "send_buffer_limit_bytes", "send_stall_limit_seconds", "connection_limit", "close_limit_seconds",
    "http_connection_limit", "http_body_limit_bytes", "http_head_limit_seconds", "http_body_limit_seconds",
    "http_buffer_limit_bytes", "websocket_buffer_limit_bytes", "handshake_limit_seconds",
    "worker_report_limit", "worker_silence_seconds", "user_address_days", "feed_entries", "lease_timeout_seconds",
    "recorded_days_kept", "recorded_facts_kept", "hot_entries", "hot_waiter_limit",
)  # fmt: skip


@register()
def check_wire_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds limits of 0 or less, invalid networks, missing TLS files, and contradictory retention times."""
    conf = stream_settings()
    found: list[CheckMessage] = []
    for name in _POSITIVE:
        if not getattr(conf, name) > 0:
            text = f"REPLSITE_{name.upper()} is {getattr(conf, name)}; it must be more than 0."
            found.append(Error(text, hint="See docs/reference/settings.md for its default.", id="streams.E010"))
    if conf.line_limit_bytes > LINE_LIMIT_BYTES:
        text = f"REPLSITE_LINE_LIMIT_BYTES is more than {LINE_LIMIT_BYTES}: clients of version 1.43 end the connection."
        found.append(Warning(text, hint="Lower it, unless all followers are ours.", id="streams.W010"))
    try:
        networks_of(conf.plain_networks)
    except BadAddress as error:
        found.append(Error(str(error), hint="See docs/how-to/tls.md.", id="streams.E011"))
    try:
        version_of(conf.redis_synapse_version)
    except ValueError as error:
        hint = "1.43 is the version of our own rows; docs/how-to/follow-a-real-synapse.md has what others get."
        found.append(Error(f"REPLSITE_REDIS_SYNAPSE_VERSION: {error}.", hint=hint, id="streams.E018"))
    return [*found, *_check_tls_files(conf), *_check_retention(conf)]


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


def _check_retention(conf: StreamSettings) -> list[CheckMessage]:
    names = ["retention_default_seconds", "retention_shortest_seconds", "retention_longest_seconds"]
    names += ["retired_shown_seconds", "watchdog_seconds", "http_address_limit", "connection_address_limit"]
    if conf.censor_after_days is not None:
        names.append("censor_after_days")
    found: list[CheckMessage] = [
        Error(
            f"REPLSITE_{name.upper()} is {getattr(conf, name)}; it must be 0 or more.",
            hint="See docs/reference/settings.md for what 0 means.",
            id="streams.E014",
        )
        for name in names
        if not getattr(conf, name) >= 0
    ]
    if 0 < conf.retention_longest_seconds < conf.retention_shortest_seconds:
        text = "REPLSITE_RETENTION_LONGEST_SECONDS is less than REPLSITE_RETENTION_SHORTEST_SECONDS."
        found.append(Error(text, hint="Let rooms choose a time between the two.", id="streams.E015"))
    return found


@register()
def check_declarations(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds declared tables without a model, and declared columns that their table lacks."""
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
            found += [
                Error(
                    f"Stream {stream.name!r}: table {table.name!r} has no column {name!r}.",
                    obj=model,
                    id="streams.E006",
                )
                for name in sorted(wanted - columns)
            ]
    return found


@register()
def check_facts(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Finds foreign keys that would delete or change facts, and managers that would let facts be changed."""
    models = [model for stream in registry.all_streams() for model in stream.models if issubclass(model, Fact)]
    proxies = [model for model in apps.get_models() if model._meta.proxy and issubclass(model, tuple(models))]
    found: list[CheckMessage] = []
    for model in dict.fromkeys([*models, *proxies]):
        found += [
            Warning(
                f"{model.__name__}.{key.name} has an on_delete that would delete or change facts: deleting a "
                f"{key.related_model._meta.object_name} that facts point to is refused with FactIsFixed.",
                hint="Say on_delete=models.PROTECT, or models.DO_NOTHING with db_constraint=False.",
                obj=model,
                id="streams.W012",
            )
            for key in keys_that_cascade(model)
            if not model._meta.proxy
        ]
        found += [
            Warning(
                f"{model.__name__}.{name} is a manager that lets facts be changed.",
                hint="Build it on streams.facts.FactQuerySet: MyQuerySet(FactQuerySet), then MyQuerySet.as_manager().",
                obj=model,
                id="streams.W013",
            )
            for name in _managers_that_write(model)
        ]
    return found


def _managers_that_write(model: type[Model]) -> list[str]:
    """Returns the names of a model's managers that would let facts be changed."""
    safe = (FactQuerySet, ReadOnlyQuerySet)
    return [manager.name for manager in model._meta.managers if not issubclass(type(manager.all()), safe)]
