"""Errors of jobs: of their arguments, their queue and their end (pure). Each sentence is written where it is raised."""

from __future__ import annotations

from streams.errors import SiteError


class JobError(SiteError):
    """Base class of the errors of jobs: of their arguments, their queue and their end."""


class UnusableArguments(JobError):
    """A path or an option that cannot be used."""


class JobCancelled(JobError):
    """A job that a user has cancelled. Its work so far stays."""


class JobInterrupted(JobError):
    """A queued job whose process is asked to stop. Its work so far stays, and the job is queued again."""


class JobLost(JobError):
    """A job that has lost its lock, because the lock's connection ended.

    Another process may have begun the job, so this process stops working on it.
    """


class QueueFull(JobError):
    """The queue holds as many waiting jobs as it may hold."""


class CarriedOut(JobError):
    """A dry run is to be carried out a second time. Only one job may carry out a dry run."""


class NotResumable(JobError):
    """A job that waits, is at work or is done cannot be resumed. Only failed, cancelled or killed jobs can be."""


class UnknownJob(JobError):
    """There is no job with the given number."""


class UnknownKind(UnknownJob):
    """There is no kind of job with the given name."""
