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

_MOST_OF_TEXT = 10_000
_LONGEST_NAME = 1_000


class JobForm(forms.Form):
    """The form for the arguments of one kind of job."""

    job_fields: Sequence[Argument] = ()

    def job_arguments(self) -> dict[str, Any]:
        entered = [(arg, self.cleaned_data[arg.name]) for arg in self.job_fields]
        found = [(arg, _VALUES[arg.type](value) if arg.type in _VALUES else value) for arg, value in entered]
        return {arg.name: value for arg, value in found if not _is_empty(arg, value)}

    def refuse(self, reason: str) -> None:
        """Shows the error ``reason`` beside the field whose name is its first word, else above the form."""
        name = reason.partition(" ")[0]
        self.add_error(name if name in self.fields else None, reason)


def job_form(kind: str) -> type[JobForm]:
    """Returns the form class of a kind of job. Raises ``KeyError`` if there is no such kind."""
    fields = [arg for arg in operations()[kind].arguments if arg.stored and arg.name != DRY_RUN]
    made = {arg.name: _FIELDS.get(arg.type, _text)(arg) for arg in fields}
    return type("FormOfJob", (JobForm,), {**made, "job_fields": fields})


def _common(arg: Argument) -> dict[str, Any]:
    return {"required": arg.required, "help_text": arg.in_form or arg.help, "label": arg.name.replace("_", " ")}


def _text(arg: Argument) -> forms.Field:
    return forms.CharField(**_common(arg), max_length=_LONGEST_NAME, widget=forms.TextInput(attrs=dict(arg.attributes)))


def _lines(arg: Argument) -> forms.Field:
    area = forms.Textarea(attrs={"rows": 3, "spellcheck": "false", **arg.attributes})
    return forms.CharField(**_common(arg), max_length=_MOST_OF_TEXT, widget=area)


def _number(arg: Argument) -> forms.Field:
    return forms.FloatField(**_common(arg))


def _choice(arg: Argument) -> forms.Field:
    many = forms.MultipleChoiceField if arg.type is Type.CHOICES else forms.ChoiceField
    return many(**_common(arg), choices=[(each, each) for each in arg.choices])


def _moment(arg: Argument) -> forms.Field:
    return forms.DateTimeField(
        **_common(arg), widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"})
    )


def _whether(arg: Argument) -> forms.Field:
    return forms.NullBooleanField(
        **_common(arg), widget=forms.Select(choices=[("", "as it suits"), ("true", "yes"), ("false", "no")])
    )


_FIELDS: Mapping[Type, Callable[[Argument], forms.Field]] = {
    Type.LINES: _lines,
    Type.NUMBER: _number,
    Type.WHOLE: _number,
    Type.FLAG: lambda arg: forms.BooleanField(**_common(arg)),
    Type.CHOICE: _choice,
    Type.CHOICES: _choice,
    Type.MOMENT: _moment,
    Type.DAY: lambda arg: forms.DateField(**_common(arg), widget=forms.DateInput(attrs={"type": "date"})),
    Type.WHETHER: _whether,
}


def _is_empty(arg: Argument, value: Any) -> bool:
    return value in (None, "", []) or (arg.type is Type.FLAG and not value)


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
