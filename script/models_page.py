"""Writes ``docs/reference/models.md`` from the models: their docstrings, fields, help texts, indexes and questions."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.apps import apps

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "reference" / "models.md"
APPS = ("events", "state", "streams", "streams_catalog", "pipeline", "replsite_api")
HEAD = """# Models

Every table of the rooms `events`, `state`, `streams` and `pipeline`, as other Django projects can import it
([how to](../how-to/use-the-models-from-another-service.md)). Written by `script/generated_pages.py` from the code.

Models with *questions* have a manager `read` beside Django's `objects`. It answers each question by an index and
refuses to write; `Model.read.writable()` gives the same rows for writing. Text columns are ordered by code point.
*Identifier*: a Matrix identifier of at most 255 bytes, without NUL.
"""
_KINDS = {
    "AutoField": "integer",
    "BigAutoField": "bigint",
    "BigIntegerField": "bigint",
    "IntegerField": "integer",
    "SmallIntegerField": "smallint",
    "FloatField": "float",
    "TextField": "text",
    "BinaryField": "bytes",
    "BooleanField": "boolean",
    "DateField": "day",
    "DateTimeField": "time",
    "JSONField": "JSON",
    "IdentifierField": "identifier",
    "GenericIPAddressField": "address",
    "UUIDField": "UUID",
}

#: Descriptions of fields that have no help text, by name. ``Model.field`` takes precedence over ``field``.
_WORDS = {
    "id": "number of the row",
    "room_id": "the room",
    "user_id": "the user",
    "event_id": "the event",
    "prev_event_id": "the event before",
    "type": "event type",
    "state_key": "state key",
    "sender": "user who sent it",
    "stream": "name of the stream",
    "stream_id": "position in its stream",
    "stream_ordering": "position in the stream of events; negative: backfilled",
    "topological_ordering": "depth as claimed by the sender",
    "instance_name": "the writer",
    "received_at": "when the row was inserted",
    "heartbeat_at": "last sign of life",
    "started_at": "when it began",
    "updated_at": "when the row last changed",
    "connected_at": "when it connected",
    "process_id": "its process",
    "host": "its machine",
    "server": "the foreign server",
    "reader": "name of the reader",
    "writer": "name of the writer",
    "token": "token as on the wire",
    "lease": "how many processes have held the name",
    "device_id": "the device",
    "CurrentState.state_key": "state key; of a member the user",
    "CurrentState.membership": "`join`, `invite`, … of an m.room.member entry",
    "CurrentStateDelta.event_id": "event that is the entry now; null: the entry was removed",
    "CurrentStateDelta.prev_event_id": "event that was the entry before; null: there was none",
    "EventAuth.auth_event_ids": "its auth events, in its own order",
    "EventEdge.prev_event_id": "an event that it builds on",
    "ErasedUser.erased_at": "when erasure was asked for",
    "IgnoredUser.user_id": "the user who ignores",
    "IgnoredUser.ignored_user_id": "the user whose messages are not shown",
    "Room.create_event_id": "the create event; null while that is not here",
    "Room.current_state_unresolved": "the state at a forward extremity is not known: no rows in `CurrentState`",
    "Room.visibility_unresolved": "the state at an event is not known: no rows in `EventVisibility`",
    "StateGroup.id": "the group; IDs of a room ascend in the order of creation",
    "StateGroupDelta.chain": "ID of the first group of the chain",
    "StateGroupDelta.state_group": "the group",
    "StateGroupDelta.event_id": "event that is the entry; null: the key is not in this group",
    "VisibleEvent.redacted": "the user is to be shown the pruned form",
}


def page() -> str:
    """Returns the text of the page."""
    parts = [HEAD]
    for label in APPS:
        config = apps.get_app_config(label)
        parts.append(f"## {config.name}\n\n{_paragraphs(sys.modules[config.models_module.__name__].__doc__)}\n")  # type: ignore[union-attr]
        models = sorted(config.get_models(), key=lambda model: model.__name__)
        parts += [_section(model) for model in models]
    return "\n".join(parts)


def _section(model: Any) -> str:
    lines = [f"### {model.__name__}", "", f"`{model.__module__}.{model.__name__}`, table `{model._meta.db_table}`.", ""]
    lines += [_paragraphs(model.__doc__), "", "| field | kind | |", "|---|---|---|"]
    lines += [_row(field) for field in model._meta.concrete_fields]
    for field in model._meta.concrete_fields:
        if _has_many_choices(field):
            lines += [
                "",
                f"Values of `{field.name}`:",
                "",
                *(f"* `{value}`: {label}" for value, label in field.choices),
            ]
    indexes = list(_indexes(model))
    if indexes:
        lines += ["", _wrapped("Indexed by " + "; ".join(indexes) + ".")]
    questions = list(_questions(model))
    if questions:
        lines += ["", "Questions:", "", *questions]
    return "\n".join(lines) + "\n"


def _row(field: Any) -> str:
    kind = _kind(field)
    if field.null:
        kind += ", or null"
    about = [str(field.help_text)] if field.help_text else []
    if _has_many_choices(field):
        about.append("one of the values below")
    elif field.choices:
        about.append(", ".join(f"`{value}` {label}" for value, label in field.choices))
    return f"| `{field.name}` | {kind} | {_cell('; '.join(about) or words_of(field))} |"


def _has_many_choices(field: Any) -> bool:
    return len(field.choices or ()) > 6


def words_of(field: Any) -> str:
    """Returns the description of a field, or an empty text."""
    general = _WORDS.get(field.name, "")
    return str(field.help_text) or _WORDS.get(f"{field.model.__name__}.{field.name}", general)


def _kind(field: Any) -> str:
    name = type(field).__name__
    if name == "ArrayField":
        return f"list of {_kind(field.base_field)}"
    if name in ("ForeignKey", "OneToOneField"):
        return f"reference to {field.related_model.__name__}"
    return _KINDS.get(name, name)


def _indexes(model: Any) -> Iterator[str]:
    """Yields the columns of each index, the primary key first."""
    meta = model._meta
    key = getattr(meta.pk, "field_names", None) or [meta.pk.name]
    yield _columns(key) + " (primary key)"
    for field in meta.concrete_fields:
        if field.unique and not field.primary_key:
            yield _columns([field.name]) + " (unique)"
        elif field.db_index and not field.primary_key:
            yield _columns([field.name])
    for constraint in meta.constraints:
        if getattr(constraint, "fields", ()):
            yield _columns(constraint.fields) + " (unique)"
    for index in meta.indexes:
        condition = f" where {_condition(index.condition)}" if index.condition is not None else ""
        yield (_columns(index.fields) if index.fields else "an expression") + condition


def _condition(condition: Any) -> str:
    """Returns the condition of a partial index in words."""
    parts = []
    for child in condition.children:
        if not isinstance(child, tuple):
            parts.append(_condition(child))
            continue
        name, _, lookup = child[0].partition("__")
        if lookup == "isnull":
            parts.append(f"`{name}` is {'' if child[1] else 'not '}null")
        else:
            parts.append(
                f"`{name}` {lookup or 'is'} {str(child[1]).lower() if isinstance(child[1], bool) else child[1]}"
            )
    words = f" {condition.connector.lower()} ".join(parts)
    return f"not ({words})" if condition.negated else words


def _columns(names: Any) -> str:
    return ", ".join(f"`{name.removeprefix('-')}`" for name in names)


def _questions(model: Any) -> Iterator[str]:
    manager = getattr(model, "read", None)
    if manager is None:
        return
    for name, function in vars(manager._queryset_class).items():
        if not name.startswith("_") and inspect.isfunction(function):
            known = [p for n, p in inspect.signature(function).parameters.items() if n != "self"]
            asked = ", ".join(_parameter(parameter) for parameter in known)
            yield _wrapped(f"* `{model.__name__}.read.{name}({asked})`: {_sentences(function.__doc__)}", indent="  ")


def _parameter(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
    default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
    return f"{star}{parameter.name}: {parameter.annotation}{default}"


def _sentences(docstring: str | None) -> str:
    """Returns a docstring as Markdown, where double backquotes become single ones."""
    return re.sub(r"``(.+?)``", r"`\1`", inspect.cleandoc(docstring or ""), flags=re.DOTALL)


def _paragraphs(docstring: str | None) -> str:
    """Returns a docstring as Markdown. Paragraphs with a line over 120 characters are wrapped."""
    parts = _sentences(docstring).split("\n\n")
    return "\n\n".join(_wrapped(part) if max(map(len, part.splitlines()), default=0) > 120 else part for part in parts)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _cell(text: str) -> str:
    return _sentences(text).replace("|", "\\|").replace("\n", " ")


def files() -> dict[Path, str]:
    """Returns the page."""
    return {PAGE: page()}
