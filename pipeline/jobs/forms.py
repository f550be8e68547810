"""Forms for the arguments of jobs: one for each kind, so that nobody has to write JSON to queue a purge.

Empty fields are left out: the kind's own check fills in defaults and says what is unusable. A kind that is not listed here may
have ``fields`` of its own, in the same form; without them its arguments are written as JSON. ``dry_run`` is no field: whether a
job is a dry run is decided where it is queued.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

from django import forms

from pipeline.export.tables import TABLES
from pipeline.jobs.run import job_kinds
from pipeline.maintenance.resync import WHAT

__all__ = ["ARGUMENTS", "FIELDS", "Entry", "JobField", "JobForm", "job_form"]

#: The field of a kind that has none.
ARGUMENTS = "arguments"
_MOST_OF_TEXT = 10_000
_LONGEST_NAME = 1_000


class Entry(Enum):
    """How an argument is entered, and so what it becomes."""

    TEXT = auto()
    LINES = auto()
    """A list of texts, one a line."""
    NUMBER = auto()
    FLAG = auto()
    CHOICE = auto()
    CHOICES = auto()
    MOMENT = auto()
    """Milliseconds since 1970, entered as date and time in UTC."""
    DAY = auto()
    WHETHER = auto()
    """True, false, or left to the job."""


@dataclass(frozen=True, slots=True)
class JobField:
    """One argument of a kind."""

    name: str
    entry: Entry
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()


_ROOM = JobField("room", Entry.TEXT, "its ID, such as !abc:example.org", required=True)
_ROOMS = JobField("rooms", Entry.LINES, "their IDs, one a line; none: all rooms")
_CUTS = (
    JobField("before", Entry.TEXT, "the ID of an event: what lies below it; one of the three"),
    JobField("before_time", Entry.MOMENT, "a time in UTC: what is older"),
    JobField("before_token", Entry.TEXT, "a token of the room's timeline: what lies below it"),
)
_DELETE_LOCAL = JobField("delete_local", Entry.FLAG, "messages of this server go, too")
_SPARK = (
    JobField("spark", Entry.WHETHER, "whether Spark writes the archive"),
    JobField("master", Entry.TEXT, "URL of a Spark master for it; none: the site's"),
)
_ARCHIVE = (
    JobField("archive", Entry.TEXT, "folder of an archive that is written first; none: what is deleted is gone"),
    *_SPARK,
)
FIELDS: Mapping[str, tuple[JobField, ...]] = {
    "archive": (
        _ROOM,
        JobField("folder", Entry.TEXT, "where the archive is written, below the folder of archives", required=True),
        *_CUTS,
        _DELETE_LOCAL,
        *_SPARK,
    ),
    "censor": (JobField("days", Entry.NUMBER, "redacted for at least so many days; none: as the site is set"),),
    "check streams": (),
    "compress state": (
        _ROOMS,
        JobField("least_saving", Entry.NUMBER, "percent of a room's rows; rooms that would save less stay as they are"),
    ),
    "export": (
        JobField("to", Entry.TEXT, "the name of a folder, which is made below exports", required=True),
        JobField("tables", Entry.CHOICES, "none: all", choices=tuple(TABLES)),
        _ROOMS,
        JobField("since", Entry.DAY, "events of this day and later ones"),
        JobField("until", Entry.DAY, "events before this day"),
        JobField("buckets", Entry.NUMBER, "parts that rooms are divided into; none: as many as fit"),
        JobField("overwrite", Entry.FLAG, "what is there already goes"),
    ),
    "import_events": (
        JobField("sources", Entry.LINES, "files and folders below the import folder, one a line", required=True),
        JobField("as_history", Entry.FLAG, "on the backward stream, below everything that is there"),
        JobField("keys", Entry.TEXT, "file with the keys of servers, which verify signatures; none: they are trusted"),
    ),
    "purge history": (_ROOM, *_CUTS, _DELETE_LOCAL, *_ARCHIVE),
    "purge orphans": (JobField("room", Entry.TEXT, "its ID; none: all rooms"),),
    "purge retention": _ARCHIVE,
    "purge room": (
        _ROOM,
        JobField("force", Entry.FLAG, "even while users of this server are joined"),
        JobField("block", Entry.FLAG, "the room is not made again"),
        *_ARCHIVE,
    ),
    "restore": (JobField("archive", Entry.TEXT, "the folder of one archive", required=True),),
    "resync": (
        JobField("what", Entry.CHOICE, "what is compared, and mended afterwards", required=True, choices=tuple(WHAT)),
        _ROOMS,
        JobField("master", Entry.TEXT, "URL of a Spark master; none: the database alone"),
    ),
}


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
    fields: tuple[JobField, ...] | None = getattr(job_kinds()[kind], "fields", FIELDS.get(kind))
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
