"""Serves jobs: lists, queues, confirms, resumes and cancels them. Purges of rooms are jobs, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from django.contrib.admin.models import ADDITION, LogEntry
from django.db import transaction
from ninja import Path, Query, Router, Status
from pydantic import Field

from pipeline import models
from replsite.api import schemas
from replsite.api.access import log_change, needs, require
from replsite.api.schemas import answers
from streams.conf import stream_settings
from streams.db.clock import database_now
from streams.jobs.arguments import DRY_RUN
from streams.jobs.confirm import CANCEL, CARRY_OUT, QUEUE, permissions, why_not
from streams.jobs.errors import CarriedOut
from streams.jobs.operation import operations
from streams.jobs.rows import CancelOutcome, cancel_job, killed_jobs
from streams.jobs.run import check_arguments, queue_job, resume_job
from streams.jobs.view import job_view, view_of

router = Router(tags=["Jobs"])
VIEW = "pipeline.view_job"
JobNumber = Annotated[int, Path(..., ge=1, le=2**63 - 1)]
JobFrom = Annotated[int | None, Query(None, alias="from", ge=1, le=2**63 - 1)]
Limit = Annotated[int, Field(ge=1, le=500)]


@router.get("/jobs", response=answers(schemas.JobList), summary="List jobs")
@needs(VIEW)
def list_jobs(request: Any, limit: Limit = 50, start: JobFrom = None) -> dict[str, Any]:
    """Returns jobs, the newest first. `from` is `next_batch` of the previous answer."""
    return _listed(limit, start)


@router.get("/jobs/kinds", response=answers(list[schemas.JobKind]), summary="List kinds of jobs")
def list_kinds(request: Any) -> list[dict[str, Any]]:
    """Returns the kinds of jobs with their arguments, as `manage.py jobs kinds` does."""
    return [
        {
            "kind": name,
            "help": kind.help,
            "changes_nothing": kind.changes_nothing,
            "arguments": {a.name: a.help for a in kind.arguments if a.stored},
        }
        for name, kind in operations().items()
    ]


@router.post("/jobs", response=answers(schemas.Job, status=202), summary="Queue a job")
@needs(QUEUE)
def queue(request: Any, asked: schemas.Queue) -> Any:
    """Queues a job for `manage.py runjobs`. Its arguments are those of the command for this kind of job.

    Also needs `pipeline.carry_out_job` if the job changes something, or names a Spark master.
    """
    return _queued(request, asked.kind, asked.arguments)


@router.get("/jobs/{job}", response=answers(schemas.Job), summary="Show a job")
@needs(VIEW)
def show_job(request: Any, job: JobNumber) -> dict[str, Any]:
    """Returns a job with its progress."""
    return job_view(job, stream_settings().database).as_json()


@router.post("/jobs/{job}/carry_out", response=answers(schemas.Job, status=202), summary="Carry out a dry run")
@needs(CARRY_OUT, QUEUE)
def carry_out(request: Any, job: JobNumber) -> Any:
    """Queues a job with the arguments of a finished dry run: once for each dry run, within an hour after its end."""
    dry = job_view(job, stream_settings().database).job
    if (reason := why_not(dry)) is not None:
        raise CarriedOut(reason)
    return _queued(request, dry.kind, {**dry.arguments, DRY_RUN: False}, dry)


@router.post("/jobs/{job}/cancel", response=answers(schemas.Job), summary="Cancel a job")
@needs(CANCEL)
def cancel(request: Any, job: JobNumber) -> dict[str, Any]:
    """Cancels a waiting job. Asks a running job to stop at its next step; until then the job's state is `running`."""
    using = stream_settings().database
    with transaction.atomic(using=using):
        outcome = cancel_job(job, request.auth.user.get_username(), using)
        if outcome is CancelOutcome.OVER:
            raise CarriedOut(f"Job {job} is {outcome}.")
        log_change(request, job_view(job, using).job, f"Cancelled: {outcome}")
    return job_view(job, using).as_json()


@router.post("/jobs/{job}/resume", response=answers(schemas.Job, status=202), summary="Resume a job")
@needs(CARRY_OUT)
def resume(request: Any, job: JobNumber) -> Any:
    """Queues a job again that failed, was cancelled or was killed. The job goes on where it stopped, if its kind can do so."""
    using = stream_settings().database
    with transaction.atomic(using=using):
        found = resume_job(job, request.auth.user.get_username(), using)
        log_change(request, found, f"Resumed: {found.kind}")
    return Status(202, job_view(job, using).as_json())


# --- rooms ------------------------------------------------------------------------------------------------------------


@router.post(
    "/rooms/{path:room_id}/purge_history",
    response=answers(schemas.Job, status=202),
    summary="Purge a room's history",
    tags=["Rooms"],
)
@needs(QUEUE)
def purge_history(request: Any, room_id: str, asked: schemas.PurgeHistory) -> Any:
    """Queues `purge history` of the room. `GET /jobs/{job}` returns the progress and the figures of the job.

    Also needs `pipeline.carry_out_job`, unless `dry_run` is true.
    """
    return _purge(request, "purge history", room_id, asked)


@router.post(
    "/rooms/{path:room_id}/purge", response=answers(schemas.Job, status=202), summary="Purge a room", tags=["Rooms"]
)
@needs(QUEUE)
def purge_room(request: Any, room_id: str, asked: schemas.PurgeRoom) -> Any:
    """Queues `purge room`, which deletes the whole room.

    Also needs `pipeline.carry_out_job`, unless `dry_run` is true.
    """
    return _purge(request, "purge room", room_id, asked)


@router.get(
    "/rooms/{path:room_id}/jobs", response=answers(schemas.JobList), summary="List a room's jobs", tags=["Rooms"]
)
@needs(VIEW)
def list_jobs_of(request: Any, room_id: str, limit: Limit = 50, start: JobFrom = None) -> dict[str, Any]:
    """Returns the jobs about a room, the newest first. The room itself may have been purged already."""
    if "\x00" in room_id:
        return {"jobs": [], "next_batch": None}
    return _listed(limit, start, arguments__room=room_id)


# --- alike ------------------------------------------------------------------------------------------------------------


def _listed(limit: int, start: int | None, **which: Any) -> dict[str, Any]:
    using = stream_settings().database
    found = models.Job.objects.using(using).filter(**which)
    if start is not None:
        found = found.filter(pk__lt=start)
    page, killed, as_of = list(found.order_by("-pk")[: limit + 1]), killed_jobs(using), database_now(using)
    jobs = [view_of(job, as_of, killed).as_json() for job in page[:limit]]
    return {"jobs": jobs, "next_batch": page[limit - 1].pk if len(page) > limit else None}


def _purge(request: Any, name: str, room_id: str, asked: schemas.Asked) -> Status[Any]:
    given = {key: value for key, value in asked.model_dump().items() if value is not None}
    return _queued(request, name, {"room": room_id, **given})


def _queued(request: Any, name: str, arguments: Mapping[str, Any], dry: models.Job | None = None) -> Status[Any]:
    """Queues a job and records the request in the admin's log, in one transaction. Returns the job with HTTP status 202.

    ``dry`` is the finished dry run that the job carries out, if any. Raises ``Forbidden`` if the user lacks a permission.
    """
    using = stream_settings().database
    checked = dict(check_arguments(name, arguments, using))
    require(request, *permissions(name, checked))
    with transaction.atomic(using=using):
        job = queue_job(
            name, checked, request.auth.user.get_username(), using, confirmed_from=None if dry is None else dry.pk
        )
        after = f", as dry run {dry.pk} has shown" if dry is not None else ""
        text = f"Queued: {name} {job.arguments}{after} (API token {request.auth})"
        LogEntry.objects.log_actions(request.auth.user_id, [job], ADDITION, change_message=text, single_object=True)
    return Status(202, job_view(job.pk, using).as_json())
