"""Forms for the arguments of jobs, one for each kind, so that a user of the admin need not write JSON.

Empty fields are left out of the job's arguments. The check of the kind fills in defaults and refuses unusable values.
There is no field for ``dry_run``, because the page that queues the job sets this argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django import forms

from streams.jobs.arguments import DRY_RUN, Argument, Type
from streams.jobs.operation import operations

__all__ = ["JobForm", "job_form"]

_MOST_OF_TEXT = 10_000
_LONGEST_NAME = 1_000


class JobForm(forms.Form):
    """The form for the arguments of one kind of job."""

    job_fields: Sequence[Argument] = ()

    def job_arguments(self) -> dict[str, Any]:
        """Returns the entered values as the arguments of a job: name -> value."""
        entered = [(one, self.cleaned_data[one.name]) for one in self.job_fields]
        found = [(one, _VALUES[one.type](value) if one.type in _VALUES else value) for one, value in entered]
        return {one.name: value for one, value in found if not _is_empty(one, value)}

    def refuse(self, reason: str) -> None:
        """Shows the error ``reason`` beside the field whose name is its first word, else above the form."""
        name = reason.partition(" ")[0]
        self.add_error(name if name in self.fields else None, reason)


def job_form(kind: str) -> type[JobForm]:
    """Returns the form class of a kind of job. Raises ``KeyError`` if there is no such kind."""
    fields = [one for one in operations()[kind].arguments if one.stored and one.name != DRY_RUN]
    made = {one.name: _FIELDS.get(one.type, _text)(one) for one in fields}
    return type("FormOfJob", (JobForm,), {**made, "job_fields": fields})


def _common(one: Argument) -> dict[str, Any]:
    return {"required": one.required, "help_text": one.in_form or one.help, "label": one.name.replace("_", " ")}


def _text(one: Argument) -> forms.Field:
    return forms.CharField(**_common(one), max_length=_LONGEST_NAME, widget=forms.TextInput(attrs=dict(one.attributes)))


def _lines(one: Argument) -> forms.Field:
    area = forms.Textarea(attrs={"rows": 3, "spellcheck": "false", **one.attributes})
    return forms.CharField(**_common(one), max_length=_MOST_OF_TEXT, widget=area)


def _number(one: Argument) -> forms.Field:
    return forms.FloatField(**_common(one))


def _choice(one: Argument) -> forms.Field:
    many = forms.MultipleChoiceField if one.type is Type.CHOICES else forms.ChoiceField
    return many(**_common(one), choices=[(each, each) for each in one.choices])


def _moment(one: Argument) -> forms.Field:
    return forms.DateTimeField(
        **_common(one), widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"})
    )


def _whether(one: Argument) -> forms.Field:
    return forms.NullBooleanField(
        **_common(one), widget=forms.Select(choices=[("", "as it suits"), ("true", "yes"), ("false", "no")])
    )


_FIELDS: Mapping[Type, Callable[[Argument], forms.Field]] = {
    Type.LINES: _lines,
    Type.NUMBER: _number,
    Type.WHOLE: _number,
    Type.FLAG: lambda one: forms.BooleanField(**_common(one)),
    Type.CHOICE: _choice,
    Type.CHOICES: _choice,
    Type.MOMENT: _moment,
    Type.DAY: lambda one: forms.DateField(**_common(one), widget=forms.DateInput(attrs={"type": "date"})),
    Type.WHETHER: _whether,
}


def _is_empty(one: Argument, value: Any) -> bool:
    return value in (None, "", []) or (one.type is Type.FLAG and not value)


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.astimezone(UTC).timestamp() * 1000)


def _whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


_VALUES: Mapping[Type, Callable[[Any], Any]] = {
    Type.LINES: lambda text: [line.strip() for line in text.splitlines() if line.strip()],
    Type.NUMBER: _whole,
    Type.WHOLE: _whole,
    Type.MOMENT: _milliseconds,
    Type.DAY: lambda day: None if day is None else day.isoformat(),
}
