"""The admin pages on which staff see, queue, carry out, resume and cancel jobs.

Each action needs a POST request and a permission. To resume a job, a user needs the permission to carry out jobs. If a
kind of job has a dry run, the form always queues a dry run, whatever permissions the user has. The page of a finished
dry run shows the figures of the dry run. On this page, a user can carry out the job with the same arguments, once,
within an hour after the dry run. Every action is recorded in the admin's log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString

from streams.admin.base import ReadOnlyAdmin
from streams.conf import stream_settings
from streams.db.clock import database_now
from streams.errors import SiteError
from streams.jobs import models
from streams.jobs.arguments import DRY_RUN, Type
from streams.jobs.confirm import CANCEL, CARRY_OUT, QUEUE, confirmed_by, is_dry, privileged, why_not
from streams.jobs.forms import JobForm, job_form
from streams.jobs.operation import operations
from streams.jobs.rows import CancelOutcome, cancel_job, is_resumable, killed_jobs
from streams.jobs.run import check_arguments, queue_job, resume_job
from streams.jobs.view import JobView, view_of
from streams.runtime.moments import moment_text
from streams.runtime.text import safe_text


class JobAdmin(ReadOnlyAdmin):
    """The pages of jobs: a list of jobs with their progress and outcome, and a page with actions for each job."""

    ordering = ("-pk",)
    list_display = ("id", "kind", "word", "progress", "asked_by", "started_at", "duration")
    list_filter = ("state",)
    readonly_fields: ClassVar[tuple[str, ...]] = ("word", "progress", "duration", "figures")
    _when = ("queued_at", "started_at", "updated_at", "finished_at", "duration", "host", "process_id", "attempts")
    fieldsets = (
        (None, {"fields": ("kind", "word", "progress", "asked_by", "arguments", "cancel_asked_by", "error")}),
        ("Before and after", {"fields": ("figures", "summary", "confirmed_from")}),
        ("When and where", {"fields": _when}),
    )
    change_form_template = "jobs/job.html"
    change_list_template = "jobs/jobs.html"

    @admin.display(description="state")
    def word(self, job: models.Job) -> str:
        return self._view(job).word

    @admin.display(description="progress")
    def progress(self, job: models.Job) -> str:
        return self._view(job).progress

    @admin.display(description="took")
    def duration(self, job: models.Job) -> str:
        return self._view(job).duration_text

    @admin.display(description="figures")
    def figures(self, job: models.Job) -> SafeString:
        return render_to_string("jobs/figures.html", {"figures": self._view(job).figures})

    def get_queryset(self, request: HttpRequest) -> Any:
        """Returns a query for the rows of jobs. Also reads which jobs were killed, once for all rows of the page."""
        using = stream_settings().database
        # One admin object serves all requests. If another request overwrites these values while this request runs, this
        # request shows the newer values, which does no harm.
        self._killed, self._as_of = killed_jobs(using), database_now(using)
        return super().get_queryset(request)

    def get_urls(self) -> list[URLPattern]:
        """Returns the URL patterns of this class's own pages, followed by those of Django's admin."""
        wrap = self.admin_site.admin_view
        urls = [
            path("queue/", wrap(self.queue_view), name="pipeline_job_queue"),
            path("<int:number>/carry-out/", wrap(self.carry_out_view), name="pipeline_job_carry_out"),
            path("<int:number>/resume/", wrap(self.resume_view), name="pipeline_job_resume"),
            path("<int:number>/cancel/", wrap(self.cancel_view), name="pipeline_job_cancel"),
        ]
        return [*urls, *super().get_urls()]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Adds values to the context of a job's page. The buttons of the page depend on these values.

        The values say whether the user may resume the job, whether the user may carry out the dry run, and which job
        carried out the dry run.
        """
        job = kwargs.get("obj")
        context["may_resume"] = job is not None and request.user.has_perm(CARRY_OUT) and is_resumable(job, self._killed)
        context["may_carry_out"] = job is not None and request.user.has_perm(CARRY_OUT) and not why_not(job)
        context["confirmed_by"] = confirmed_by(job) if job is not None and is_dry(job) else None
        return super().render_change_form(request, context, *args, **kwargs)

    # --- queue --------------------------------------------------------------------------------------------------------

    def queue_view(self, request: HttpRequest) -> HttpResponse:
        """Shows the kinds of job, then the form of the chosen kind. Then queues a job for ``manage.py runjobs``.

        If the chosen kind has a dry run, a dry run is queued.
        """
        if not request.user.has_perm(QUEUE):
            raise PermissionDenied(QUEUE)
        kinds, name = operations(), request.GET.get("kind", "")
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
        except SiteError as error:
            form.refuse(str(error))
            return None
        if (named := privileged(name, arguments)) is not None and not request.user.has_perm(CARRY_OUT):
            form.refuse(f"{named} may be named with the permission {CARRY_OUT}; leave it empty for the site's own.")
            return None
        return arguments

    def _queue_what_changes(self, request: HttpRequest, name: str, arguments: dict[str, Any]) -> HttpResponse:
        if not request.user.has_perm(CARRY_OUT):
            raise PermissionDenied(CARRY_OUT)
        if request.POST.get("confirmed") == "yes":
            return self._queue(request, name, arguments)
        hidden = [
            (key, value) for key in request.POST for value in request.POST.getlist(key) if key != "csrfmiddlewaretoken"
        ]
        sentences = [
            operations()[name].help,
            "It cannot be tried first: it begins as soon as manage.py runjobs takes it.",
        ]
        return self._confirm(request, name, f"Queue {name}?", sentences, arguments, hidden=hidden, button="Queue it")

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
        except SiteError as error:
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
        """Shows the figures of a dry run and asks for confirmation. Then queues the job that does the real work."""
        if not request.user.has_perm(CARRY_OUT):
            raise PermissionDenied(CARRY_OUT)
        dry = self._job(number)
        title = f"Carry out {dry.kind}?"
        if (reason := why_not(dry)) is not None:
            shown = dry.arguments if isinstance(dry.arguments, dict) else {"arguments": dry.arguments}
            again = _queue_address(dry.kind, shown) if dry.kind in operations() and request.user.has_perm(QUEUE) else ""
            return self._confirm(request, dry.kind, title, [reason], shown, dry=dry, again=again)
        arguments = {**dry.arguments, DRY_RUN: False}
        if request.method == "POST":
            return self._queue(request, dry.kind, arguments, dry)
        sentences = ["What the dry run has shown is done for good, with the same arguments."]
        if isinstance(dry.summary, dict) and isinstance(words := dry.summary.get("words"), str):
            sentences.append(f"{safe_text(words[:1].upper() + words[1:], None)}.")
        return self._confirm(request, dry.kind, title, sentences, arguments, button=f"Carry out {dry.kind}", dry=dry)

    # --- resume -------------------------------------------------------------------------------------------------------

    def resume_view(self, request: HttpRequest, number: int) -> HttpResponse:
        """Asks for confirmation, then queues a failed, cancelled or killed job again."""
        if not request.user.has_perm(CARRY_OUT):
            raise PermissionDenied(CARRY_OUT)
        job, using = self._job(number), stream_settings().database
        if request.method != "POST":
            shown = job.arguments if isinstance(job.arguments, dict) else {"arguments": job.arguments}
            title = f"Resume job {number}?"
            if not is_resumable(job, killed_jobs(using)):
                return self._confirm(request, job.kind, title, [f"Job {number} is {job.state}."], shown)
            sentences = [
                f"{job.kind} is queued again with the same arguments, and goes on where it was, as far as it can.",
                *([f"It ended with: {safe_text(job.error, None)}"] if job.error else []),
            ]
            return self._confirm(request, job.kind, title, sentences, shown, button="Resume it")
        try:
            with transaction.atomic(using=using):
                resume_job(number, request.user.get_username(), using)
                self.log_change(request, job, f"Resumed: {job.kind}")
        except SiteError as error:
            messages.error(request, str(error))
        else:
            messages.success(request, f"Job {number} is queued again; manage.py runjobs carries it out.")
        return self._to(request, number)

    # --- cancel -------------------------------------------------------------------------------------------------------

    def cancel_view(self, request: HttpRequest, number: int) -> HttpResponse:
        if not request.user.has_perm(CANCEL):
            raise PermissionDenied(CANCEL)
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
        if self.has_view_permission(request):
            return HttpResponseRedirect(reverse("admin:pipeline_job_change", args=[number]))
        return HttpResponseRedirect(reverse("live"))

    def _confirm(
        self,
        request: HttpRequest,
        kind: str,
        title: str,
        sentences: list[str],
        arguments: Mapping[str, Any],
        **more: Any,
    ) -> HttpResponse:
        dry = more.pop("dry", None)
        known = operations()[kind].arguments if kind in operations() else ()
        moments = {argument.name for argument in known if argument.type is Type.MOMENT}
        shown = [
            (
                name,
                safe_text(moment_text(value) if name in moments and isinstance(value, int) else _as_text(value), None),
            )
            for name, value in arguments.items()
            if name != DRY_RUN and value not in (None, False)
        ]
        context = {"title": title, "sentences": sentences, "shown": shown, **more}
        if dry is not None:
            view = view_of(dry, database_now(stream_settings().database))
            context |= {
                "figures": view.figures,
                "has_figures": True,
                "dry": dry,
                "asked_by": safe_text(dry.asked_by, None),
            }
        return self._page(request, "jobs/confirm.html", **context)

    def _page(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        everywhere = self.admin_site.each_context(request)
        return TemplateResponse(request, template, {**everywhere, "opts": self.opts, **context})

    def _view(self, job: models.Job) -> JobView:
        return view_of(job, self._as_of, self._killed)


def _queue_address(kind: str, arguments: Mapping[str, Any]) -> str:
    filled = {
        name: "\n".join(map(str, value)) if isinstance(value, list) else value for name, value in arguments.items()
    }
    texts = {name: value for name, value in filled.items() if isinstance(value, str) or value is True}
    return f"{reverse('admin:pipeline_job_queue')}?{urlencode({**texts, 'kind': kind})}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
