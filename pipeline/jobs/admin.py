"""The admin pages of jobs: staff see jobs, and queue, carry out and cancel them.

Each of the three actions is by POST only, and needs a permission of its own. A job that has a dry run is always queued
as one, whatever permissions the user has. The page of the dry run shows its figures. From there the job is carried out
with the same arguments, once, while the figures are fresh. Every action is in the admin's log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString

from events.errors import EventsError
from pipeline import models
from pipeline.errors import PipelineError
from pipeline.jobs.arguments import DRY_RUN
from pipeline.jobs.forms import JobForm, job_form
from pipeline.jobs.rows import CancelOutcome, cancel_job, killed_jobs
from pipeline.jobs.run import check_arguments, job_kinds, queue_job
from pipeline.jobs.view import JobView, view_of
from streams.admin.base import ReadOnlyAdmin
from streams.conf import stream_settings
from streams.db.clock import database_now
from streams.runtime.moments import moment_text
from streams.runtime.text import printable

__all__ = ["FRESH_SECONDS", "JobAdmin"]

MASTER = "master"
QUEUE, CARRY_OUT, CANCEL = "pipeline.queue_job", "pipeline.carry_out_job", "pipeline.cancel_job"
#: Seconds after its end for which the figures of a dry run may be confirmed.
FRESH_SECONDS = 3600.0


@admin.register(models.Job)
class JobAdmin(ReadOnlyAdmin):
    """The pages of jobs: a list with their progress and outcome, and actions on each."""

    ordering = ("-pk",)
    list_display = ("id", "kind", "word", "progress", "asked_by", "started_at", "took")
    list_filter = ("state",)
    readonly_fields = ("word", "progress", "took", "figures")
    _when = ("queued_at", "started_at", "updated_at", "finished_at", "took", "host", "process_id", "attempts")
    fieldsets = (
        (None, {"fields": ("kind", "word", "progress", "asked_by", "arguments", "cancel_asked_by", "error")}),
        ("Before and after", {"fields": ("figures", "summary", "confirmed_from")}),
        ("When and where", {"fields": _when}),
    )
    change_form_template = "jobs/job.html"
    change_list_template = "jobs/jobs.html"

    @admin.display(description="state")
    def word(self, job: models.Job) -> str:
        """Returns the state, or ``killed`` for a running job that no process works on."""
        return self._view(job).word

    @admin.display(description="progress")
    def progress(self, job: models.Job) -> str:
        """Returns stage, rate and time left."""
        return self._view(job).progress

    @admin.display(description="took")
    def took(self, job: models.Job) -> str:
        """Returns the time that the job took, or has taken so far."""
        return self._view(job).took

    @admin.display(description="figures")
    def figures(self, job: models.Job) -> SafeString:
        """Returns a table of the figures before and after the work, side by side."""
        return render_to_string("jobs/figures.html", {"figures": self._view(job).figures})

    def get_queryset(self, request: HttpRequest) -> Any:
        """Returns the rows. Finds out once for each page which jobs were killed."""
        using = stream_settings().database
        # One admin object serves all requests. If another request overwrites these values during this one, the new
        # values are as good.
        self._killed, self._as_of = killed_jobs(using), database_now(using)
        return super().get_queryset(request)

    def get_urls(self) -> list[URLPattern]:
        """Returns the paths of the forms for queueing, carrying out and cancelling, followed by Django's own."""
        wrap = self.admin_site.admin_view
        own = [
            path("queue/", wrap(self.queue_view), name="pipeline_job_queue"),
            path("<int:number>/carry-out/", wrap(self.carry_out_view), name="pipeline_job_carry_out"),
            path("<int:number>/cancel/", wrap(self.cancel_view), name="pipeline_job_cancel"),
        ]
        return [*own, *super().get_urls()]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Adds to the page of a dry run whether its plan may be carried out, and the job that carried the plan out, if any."""
        job = kwargs.get("obj")
        context["may_carry_out"] = job is not None and request.user.has_perm(CARRY_OUT) and not _why_not(job)
        context["confirmed_by"] = _confirmed_by(job) if job is not None and _is_dry(job) else None
        return super().render_change_form(request, context, *args, **kwargs)

    # --- queue --------------------------------------------------------------------------------------------------------

    def queue_view(self, request: HttpRequest) -> HttpResponse:
        """Shows the kinds of job, then the form of one kind, and queues the job for ``manage.py runjobs``.

        A job that has a dry run is queued as a dry run.
        """
        if not request.user.has_perm(QUEUE):
            raise PermissionDenied
        kinds, name = job_kinds(), request.GET.get("kind", "")
        if not name:
            listed = [{"name": kind, "help": found.help} for kind, found in kinds.items()]
            return self._page(request, "jobs/kinds.html", title="Queue a job", kinds=listed)
        if name not in kinds:
            raise Http404("There is no such kind of job.")
        form = job_form(name)(request.POST if request.method == "POST" else None, initial=request.GET.dict())
        arguments = self._checked(request, name, form) if form.is_bound and form.is_valid() else None
        if arguments is None:
            return self._page(request, "jobs/queue.html", title=f"Queue {name}", form=form, about=kinds[name].help)
        if DRY_RUN in arguments:
            return self._queue(request, name, arguments | {DRY_RUN: True})
        if kinds[name].changes_nothing:
            return self._queue(request, name, arguments)
        return self._queue_what_changes(request, name, arguments)

    @staticmethod
    def _checked(request: HttpRequest, name: str, form: JobForm) -> dict[str, Any] | None:
        try:
            arguments = dict(check_arguments(name, form.job_arguments(), stream_settings().database))
        except (PipelineError, EventsError, ValueError) as error:
            form.refuse(str(error))
            return None
        # Executors get what they need to reach the database. A user who may only queue dry runs must not choose where they are.
        if arguments.get(MASTER) is not None and not request.user.has_perm(CARRY_OUT):
            form.refuse(f"{MASTER} may be named with the permission {CARRY_OUT}; leave it empty for the site's own.")
            return None
        return arguments

    def _queue_what_changes(self, request: HttpRequest, name: str, arguments: dict[str, Any]) -> HttpResponse:
        """Queues a job that changes something and has no dry run, after asking for confirmation.

        Needs the permission to carry out jobs.
        """
        if not request.user.has_perm(CARRY_OUT):
            raise PermissionDenied
        if request.POST.get("confirmed") == "yes":
            return self._queue(request, name, arguments)
        hidden = [
            (key, value) for key in request.POST for value in request.POST.getlist(key) if key != "csrfmiddlewaretoken"
        ]
        sentences = [
            job_kinds()[name].help,
            "It cannot be tried first: it begins as soon as manage.py runjobs takes it.",
        ]
        return self._confirm(request, f"Queue {name}?", sentences, arguments, hidden=hidden, button="Queue it")

    def _queue(
        self, request: HttpRequest, name: str, arguments: Mapping[str, Any], dry: models.Job | None = None
    ) -> HttpResponse:
        using, by = stream_settings().database, request.user.get_username()
        try:
            # The job and its entry in the log commit together.
            with transaction.atomic(using=using):
                job = queue_job(name, arguments, by, using, confirmed_from=None if dry is None else dry.pk)
                after = f", as dry run {dry.pk} has shown" if dry is not None else ""
                self.log_addition(request, job, f"Queued: {name} {json.dumps(job.arguments)}{after}")
        except (PipelineError, EventsError) as error:
            messages.error(request, str(error))
            return HttpResponseRedirect(request.get_full_path())
        text = f"Job {job.pk} is queued; manage.py runjobs carries it out."
        if arguments.get(DRY_RUN):
            text += (
                " It is a dry run and changes nothing: its page shows the figures, and from there it is carried out."
            )
        messages.success(request, text)
        return self._to(request, job.pk)

    # --- carry out ----------------------------------------------------------------------------------------------------

    def carry_out_view(self, request: HttpRequest, number: int) -> HttpResponse:
        """Shows the figures of a dry run once more, then queues the same job without the dry run."""
        if not request.user.has_perm(CARRY_OUT):
            raise PermissionDenied
        dry = self._job(number)
        title = f"Carry out {dry.kind}?"
        if (why_not := _why_not(dry)) is not None:
            shown = dry.arguments if isinstance(dry.arguments, dict) else {"arguments": dry.arguments}
            return self._confirm(request, title, [why_not], shown, dry=dry)
        arguments = {**dry.arguments, DRY_RUN: False}
        if request.method == "POST":
            return self._queue(request, dry.kind, arguments, dry)
        sentences = ["What the dry run has shown is done for good, with the same arguments."]
        if isinstance(dry.summary, dict) and isinstance(words := dry.summary.get("words"), str):
            sentences.append(f"{printable(words[:1].upper() + words[1:])}.")
        return self._confirm(request, title, sentences, arguments, button=f"Carry out {dry.kind}", dry=dry)

    # --- cancel -------------------------------------------------------------------------------------------------------

    def cancel_view(self, request: HttpRequest, number: int) -> HttpResponse:
        """Asks for confirmation, then cancels the job."""
        if not request.user.has_perm(CANCEL):
            raise PermissionDenied
        job, using = self._job(number), stream_settings().database
        if request.method != "POST":
            return self._page(request, "jobs/cancel.html", title=f"Cancel job {number}?", job=job)
        with transaction.atomic(using=using):
            outcome = cancel_job(number, request.user.get_username(), using)
            if outcome is not CancelOutcome.OVER:
                self.log_change(request, job, f"Cancelled: {outcome}")
        messages.info(request, f"Job {number}: {outcome}.")
        return self._to(request, number)

    # --- alike --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _job(number: int) -> models.Job:
        job = models.Job.objects.using(stream_settings().database).filter(pk=number).first()
        if job is None:
            raise Http404(f"There is no job {number}.")
        return job

    def _to(self, request: HttpRequest, number: int) -> HttpResponse:
        """Redirects to the job's page, or to the live page if the user may not see jobs."""
        if self.has_view_permission(request):
            return HttpResponseRedirect(reverse("admin:pipeline_job_change", args=[number]))
        return HttpResponseRedirect(reverse("live"))

    def _confirm(
        self, request: HttpRequest, title: str, sentences: list[str], arguments: Mapping[str, Any], **more: Any
    ) -> HttpResponse:
        dry = more.pop("dry", None)
        told = [
            (
                name,
                printable(moment_text(value) if name == "before_time" and isinstance(value, int) else _as_text(value)),
            )
            for name, value in arguments.items()
            if name != DRY_RUN and value not in (None, False)
        ]
        context = {"title": title, "sentences": sentences, "told": told, **more}
        if dry is not None:
            view = view_of(dry, database_now(stream_settings().database))
            context |= {"figures": view.figures, "has_figures": True, "dry": dry, "asked_by": printable(dry.asked_by)}
        return self._page(request, "jobs/confirm.html", **context)

    def _page(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        everywhere = self.admin_site.each_context(request)
        return TemplateResponse(request, template, {**everywhere, "opts": self.opts, **context})

    def _view(self, job: models.Job) -> JobView:
        return view_of(job, self._as_of, self._killed)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_dry(job: models.Job) -> bool:
    return isinstance(job.arguments, dict) and job.arguments.get(DRY_RUN) is True


def _confirmed_by(dry: models.Job) -> int | None:
    """Returns the ID of the job that carries out this dry run, or null if there is none."""
    jobs = models.Job.objects.using(stream_settings().database)
    return jobs.filter(confirmed_from=dry.pk).values_list("pk", flat=True).first()


def _why_not(dry: models.Job) -> str | None:
    """Returns the reason why the figures of a dry run cannot be confirmed, or null if they can."""
    if not isinstance(dry.arguments, dict):
        return f"The arguments of job {dry.pk} are no JSON object, so no kind of job can use them. Queue another one."
    if not _is_dry(dry) or dry.kind not in job_kinds():
        return f"Job {dry.pk} is no dry run of a kind of job that there is."
    if dry.state != models.JobState.DONE or dry.finished_at is None:
        return f"Dry run {dry.pk} is {dry.state}: only the figures of one that is done can be confirmed."
    if (number := _confirmed_by(dry)) is not None:
        return f"Dry run {dry.pk} was confirmed already: job {number} carries it out."
    if database_now(stream_settings().database) - dry.finished_at > timedelta(seconds=FRESH_SECONDS):
        return f"Dry run {dry.pk} ended more than an hour ago, and its figures may be others now. Queue another one."
    return None
