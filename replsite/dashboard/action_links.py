"""Lists the links of the live page to operations (``replsite.operator_actions``) and to jobs: address, permission and text."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from django.urls import reverse

from replsite import installed_apps
from replsite.operator_actions import ACTIONS

#: A number in place of a job's ID, because the URL pattern takes only numbers. In the address it is replaced by ``~``.
_NO_JOB = 987_654_321


@dataclass(frozen=True, slots=True)
class ActionLink:
    """A link to the page of an action. This page describes the effects of the action and asks for confirmation."""

    permission: str
    text: str
    view: str
    is_of_job: bool = False
    """If true, the address has the ID of a job, and no query string."""
    query: str = "name=~"
    """The query string. Empty: the page takes none."""

    def address(self) -> str:
        """Returns the address of the page. ``~`` in it stands for the quoted name of a stream or reader, or for a job's ID."""
        if self.is_of_job:
            return reverse(self.view, args=[_NO_JOB]).replace(str(_NO_JOB), "~")
        return f"{reverse(self.view)}{'?' if self.query else ''}{self.query}"


_CARRY_OUT, _QUEUE = "pipeline.carry_out_job", "pipeline.queue_job"


def _of_action(name: str, text: str) -> ActionLink:
    return ActionLink(ACTIONS[name].permission, text, name)


#: The links by the names of actions that a status uses (``Verdict.actions``).
LINKS = {
    "end": _of_action("end-holder", "End what holds it back"),
    "end lock holder": _of_action("end-blocker", "End the session it waits for"),
    "disconnect": _of_action("disconnect-reader", "Disconnect it"),
    "forget": _of_action("forget-reader", "Forget it"),
    "resync": _of_action("resync-reader", "Resync it"),
    "replay": _of_action("replay-reader", "Replay it"),
    "retry": _of_action("retry-parked", "Retry its dead letters"),
    "parked": ActionLink("streams.view_parkedfact", "Its dead letters", "parked-facts"),
    "resume": ActionLink(_CARRY_OUT, "Resume it", "admin:pipeline_job_resume", is_of_job=True),
    "cancel": ActionLink("pipeline.cancel_job", "Cancel it", "admin:pipeline_job_cancel", is_of_job=True),
    "repair": ActionLink(_CARRY_OUT, "Repair it", "admin:pipeline_job_carry_out", is_of_job=True),
    "archives": ActionLink("pipeline.view_job", "Remove old archives", "archives", query=""),
    "positions": ActionLink(_QUEUE, "Repair it", "admin:pipeline_job_queue", query="kind=resync&what=positions"),
}


def action_addresses(permissions: Container[str]) -> dict[str, str]:
    """Returns ``{name of an action: address of its page}`` for the actions that these permissions allow on this site."""
    return {
        word: action.address()
        for word, action in LINKS.items()
        if action.permission in permissions and installed_apps.has(action.permission.partition(".")[0])
    }
