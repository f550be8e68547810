"""Decides who may queue which job, and which dry runs may be carried out.

The admin and the HTTP API use these rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from streams.conf import stream_settings
from streams.db.clock import database_now
from streams.jobs.arguments import DRY_RUN
from streams.jobs.models import Job, JobState
from streams.jobs.operation import operations

QUEUE, CARRY_OUT, CANCEL = "pipeline.queue_job", "pipeline.carry_out_job", "pipeline.cancel_job"
#: Seconds after its end for which the figures of a dry run may be confirmed.
FRESH_SECONDS = 3600.0


def permissions(kind: str, arguments: Mapping[str, Any]) -> list[str]:
    """Returns the permissions that a user needs to queue a job of the kind ``kind`` with the checked ``arguments``.

    A job that changes something needs the permission ``CARRY_OUT``. So does a job with a privileged argument.
    """
    changes = not operations()[kind].changes_nothing and not arguments.get(DRY_RUN)
    return [QUEUE, CARRY_OUT] if changes or privileged(kind, arguments) else [QUEUE]


def privileged(kind: str, arguments: Mapping[str, Any]) -> str | None:
    """Returns the name of an argument that has a value, and whose value only a user may give who may carry out jobs."""
    declared = operations()[kind].arguments
    return next((arg.name for arg in declared if arg.is_privileged and arguments.get(arg.name) is not None), None)


def is_dry(job: Job) -> bool:
    return isinstance(job.arguments, dict) and job.arguments.get(DRY_RUN) is True


def confirmed_by(dry: Job) -> int | None:
    """Returns the ID of the job that carries out the dry run ``dry``, or None if no job does this."""
    jobs = Job.objects.using(stream_settings().database)
    return jobs.filter(confirmed_from=dry.pk).values_list("pk", flat=True).first()


def why_not(dry: Job) -> str | None:
    """Returns the reason why a dry run cannot be carried out. Returns None if it can be carried out."""
    if not isinstance(dry.arguments, dict):
        return f"The arguments of job {dry.pk} are no JSON object, so no kind of job can use them. Queue another one."
    if not is_dry(dry) or dry.kind not in operations():
        return f"Job {dry.pk} is no dry run of a kind of job that there is."
    if dry.state != JobState.DONE or dry.finished_at is None:
        return f"Dry run {dry.pk} is {dry.state}: only the figures of one that is done can be confirmed."
    if (number := confirmed_by(dry)) is not None:
        return f"Dry run {dry.pk} was confirmed already: job {number} carries it out."
    if database_now(stream_settings().database) - dry.finished_at > timedelta(seconds=FRESH_SECONDS):
        return f"Dry run {dry.pk} ended more than an hour ago, and its figures may be others now. Queue another one."
    return None
