"""Forms for the arguments of jobs: one for each kind, so that nobody has to write JSON to queue a purge.

Empty fields are left out: the kind's own check fills in defaults and says what is unusable. A kind
says its ``fields``; without them its arguments are written as JSON. ``dry_run`` is no field: whether a
job is a dry run is decided where it is queued.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from django import forms

from pipeline.jobs.fields import Entry, JobField
from pipeline.jobs.run import job_kinds

__all__ = ["ARGUMENTS", "JobForm", "job_form"]

#: The field of a kind that has none.
ARGUMENTS = "arguments"
_MOST_OF_TEXT = 10_000
_LONGEST_NAME = 1_000


class JobForm(forms.Form):
    """The arguments of one kind."""

    job_fields: tuple[JobField, ...] | None = None

    def job_arguments(self) -> dict[str, Any]:
        """What was entered, as the kind takes it; raises ``ValueError`` for JSON that is none."""
        if self.job_fields is None:
            return _object(self.cleaned_data[ARGUMENTS])
        found = {field: _VALUES[field.entry](self.cleaned_data[field.name]) for field in self.job_fields}
        return {field.name: value for field, value in found.items() if not _is_empty(field, value)}

    def refuse(self, reason: str) -> None:
        """Say what is wrong beside the field that the reason begins with, as far as there is one."""
        name = reason.partition(" ")[0]
        self.add_error(name if name in self.fields else ARGUMENTS if ARGUMENTS in self.fields else None, reason)


def job_form(kind: str) -> type[JobForm]:
    """The form of a kind; raises ``KeyError`` when there is no such kind."""
    fields: tuple[JobField, ...] | None = getattr(job_kinds()[kind], "fields", None)
    if fields is None:
        area = forms.Textarea(attrs={"rows": 4, "spellcheck": "false"})
        text = 'as JSON, such as {"dry_run": true}; empty: the defaults'
        made: dict[str, forms.Field] = {
            ARGUMENTS: forms.CharField(required=False, max_length=_MOST_OF_TEXT, widget=area, help_text=text)
        }
    else:
        made = {field.name: _MAKERS[field.entry](field) for field in fields}
    return type("FormOfJob", (JobForm,), {**made, "job_fields": fields})


def _common(field: JobField) -> dict[str, Any]:
    return {"required": field.required, "help_text": field.help, "label": field.name.replace("_", " ")}


def _lines(field: JobField) -> forms.Field:
    area = forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})
    return forms.CharField(**_common(field), max_length=_MOST_OF_TEXT, widget=area)


def _choice(field: JobField) -> forms.Field:
    return forms.ChoiceField(**_common(field), choices=[(one, one) for one in field.choices])


def _choices(field: JobField) -> forms.Field:
    return forms.MultipleChoiceField(**_common(field), choices=[(one, one) for one in field.choices])


def _moment(field: JobField) -> forms.Field:
    return forms.DateTimeField(
        **_common(field), widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"})
    )


def _whether(field: JobField) -> forms.Field:
    return forms.NullBooleanField(
        **_common(field), widget=forms.Select(choices=[("", "as it suits"), ("true", "yes"), ("false", "no")])
    )


_MAKERS: Mapping[Entry, Callable[[JobField], forms.Field]] = {
    Entry.TEXT: lambda field: forms.CharField(**_common(field), max_length=_LONGEST_NAME),
    Entry.LINES: _lines,
    Entry.NUMBER: lambda field: forms.FloatField(**_common(field)),
    Entry.FLAG: lambda field: forms.BooleanField(**_common(field)),
    Entry.CHOICE: _choice,
    Entry.CHOICES: _choices,
    Entry.MOMENT: _moment,
    Entry.DAY: lambda field: forms.DateField(**_common(field), widget=forms.DateInput(attrs={"type": "date"})),
    Entry.WHETHER: _whether,
}


def _is_empty(field: JobField, value: Any) -> bool:
    return value in (None, "", []) or (field.entry is Entry.FLAG and not value)


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.astimezone(UTC).timestamp() * 1000)


def _number(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


_VALUES: Mapping[Entry, Callable[[Any], Any]] = {
    Entry.TEXT: lambda text: text,
    Entry.LINES: lambda text: [line.strip() for line in text.splitlines() if line.strip()],
    Entry.NUMBER: _number,
    Entry.FLAG: bool,
    Entry.CHOICE: lambda text: text,
    Entry.CHOICES: list,
    Entry.MOMENT: _milliseconds,
    Entry.DAY: lambda day: None if day is None else day.isoformat(),
    Entry.WHETHER: lambda value: value,
}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except RecursionError as error:
        raise ValueError("This is no JSON: too deep.") from error
    except ValueError as error:
        raise ValueError(f"This is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("This must be an object, in braces.")
    return found
