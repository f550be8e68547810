"""Jobs, what they refused and loaded, and the live derived tables, in the admin. Rows are read-only.

Jobs are queued and cancelled by POST only, by those with the permission for it, and are written into the admin's log.
"""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from events.json_for_people import json_for_people
from pipeline import models
from pipeline.errors import PipelineError
from pipeline.job_runs import job_kinds, queue_job
from pipeline.job_views import JobView, view_of
from pipeline.jobs import cancel_job, killed_jobs
from streams.clock import database_now
from streams.conf import stream_settings
from streams.read_only_admin import ReadOnlyAdmin

__all__ = [
    "ImportSourceAdmin",
    "JobAdmin",
    "NewestFirstAdmin",
    "QuarantinedLineAdmin",
    "RoomStatisticsAdmin",
    "SourceWriteAdmin",
]

_MOST_OF_ARGUMENTS = 10_000


class QueueForm(forms.Form):
    """A kind of job and its arguments."""

    kind = forms.ChoiceField(help_text="what is to be done")
    arguments = forms.CharField(
        required=False, max_length=_MOST_OF_ARGUMENTS, widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}),
        help_text='as JSON, such as {"dry_run": true}; empty: the defaults',
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kinds = [(name, f"{name}: {kind.help}") for name, kind in job_kinds().items()]
        self.fields["kind"] = forms.ChoiceField(choices=kinds, help_text="what is to be done")

    def clean_arguments(self) -> dict[str, Any]:
        """The object that the text is."""
        try:
            found = json.loads(self.cleaned_data["arguments"] or "{}")
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"This is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise forms.ValidationError("This must be an object, in braces.")
        return found


@admin.register(models.Job)
class JobAdmin(ReadOnlyAdmin):
    """Runs of bulk work: how far they are, what became of them, and two things to do."""

    ordering = ("-pk",)
    list_display = ("id", "kind", "word", "progress", "asked_by", "started_at", "took")
    list_filter = ("state",)
    readonly_fields = ("word", "progress", "took", "figures")
    fieldsets = (
        (None, {"fields": ("kind", "word", "progress", "asked_by", "arguments", "cancel_asked_by", "error")}),
        ("Before and after", {"fields": ("figures", "summary")}),
        (
            "When and where",
            {
                "fields": (
                    "queued_at",
                    "started_at",
                    "updated_at",
                    "finished_at",
                    "took",
                    "host",
                    "process_id",
                    "attempts",
                )
            },
        ),
    )
    change_form_template = "jobs/job.html"
    change_list_template = "jobs/jobs.html"

    @admin.display(description="state")
    def word(self, job: models.Job) -> str:
        """The state; ``killed`` for a running job that no process works on."""
        return self._view(job).word

    @admin.display(description="progress")
    def progress(self, job: models.Job) -> str:
        """Stage, rate and time left."""
        return self._view(job).progress

    @admin.display(description="took")
    def took(self, job: models.Job) -> str:
        """How long, so far."""
        return self._view(job).took

    @admin.display(description="figures")
    def figures(self, job: models.Job) -> SafeString:
        """What was counted before the work and after it, side by side."""
        return render_to_string("jobs/figures.html", {"figures": self._view(job).figures})

    def get_queryset(self, request: HttpRequest) -> Any:
        """The rows; which of them were killed is asked once a page (another page at the same time has the same answer)."""
        using = stream_settings().database
        self._killed, self._as_of = killed_jobs(using), database_now(using)
        return super().get_queryset(request)

    def get_urls(self) -> list[URLPattern]:
        """The two forms besides the pages of every model."""
        wrap = self.admin_site.admin_view
        own = [
            path("queue/", wrap(self.queue_view), name="pipeline_job_queue"),
            path("<int:number>/cancel/", wrap(self.cancel_view), name="pipeline_job_cancel"),
        ]
        return [*own, *super().get_urls()]

    def queue_view(self, request: HttpRequest) -> HttpResponse:
        """Choose a job for ``manage.py runjobs``."""
        if not request.user.has_perm("pipeline.queue_job"):
            raise PermissionDenied
        form = QueueForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            kind, arguments = form.cleaned_data["kind"], form.cleaned_data["arguments"]
            try:
                job = queue_job(kind, arguments, request.user.get_username())
            except PipelineError as error:
                form.add_error("arguments", str(error))
            else:
                self.log_addition(request, job, f"Queued: {kind} {json.dumps(job.arguments)}")
                messages.success(request, f"Job {job.pk} is queued; manage.py runjobs carries it out.")
                return HttpResponseRedirect(reverse("admin:pipeline_job_changelist"))
        return self._page(request, "jobs/queue.html", title="Queue a job", form=form)

    def cancel_view(self, request: HttpRequest, number: int) -> HttpResponse:
        """Ask once more, then cancel."""
        if not request.user.has_perm("pipeline.cancel_job"):
            raise PermissionDenied
        job = models.Job.objects.filter(pk=number).first()
        if job is None:
            raise Http404(f"There is no job {number}.")
        if request.method != "POST":
            return self._page(request, "jobs/cancel.html", title=f"Cancel job {number}?", job=job)
        outcome = cancel_job(number, request.user.get_username(), stream_settings().database)
        self.log_change(request, job, f"Cancelled: {outcome}")
        messages.info(request, f"Job {number}: {outcome}.")
        return HttpResponseRedirect(reverse("admin:pipeline_job_changelist"))

    def _page(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        everywhere = self.admin_site.each_context(request)
        return TemplateResponse(request, template, {**everywhere, "opts": self.opts, **context})

    def _view(self, job: models.Job) -> JobView:
        return view_of(job, self._as_of, self._killed)


@admin.register(models.ImportedRoom, models.BatchLedger, models.MendedRoom)
class NewestFirstAdmin(ReadOnlyAdmin):
    """The rooms that runs of bulk work loaded, and how far the live tables are: all columns, newest first."""

    ordering = ("-pk",)


@admin.register(models.SourceWrite)
class SourceWriteAdmin(ReadOnlyAdmin):
    """What Spark has appended to streams."""

    ordering = ("-committed_at",)


@admin.register(models.ImportSource)
class ImportSourceAdmin(NewestFirstAdmin):
    """What imports read; the list leaves out what a large database's ranges are."""

    list_display = ("job", "number", "name", "form", "rows")
    list_select_related = ("job",)


@admin.register(models.QuarantinedLine)
class QuarantinedLineAdmin(NewestFirstAdmin):
    """Lines that an import did not load, and why."""

    readonly_fields = ("first_bytes",)

    @admin.display(description="first bytes")
    def first_bytes(self, line: models.QuarantinedLine) -> SafeString:
        """What stood there."""
        shown = json_for_people(line.content)
        return format_html('<pre style="white-space: pre-wrap; overflow-wrap: anywhere">{}</pre>', shown)


@admin.register(models.RoomStatistics)
class RoomStatisticsAdmin(ReadOnlyAdmin):
    """What came in for each room and who is there, kept current by the live pipeline."""

    ordering = ("pk",)
    search_fields = ("pk__exact",)
