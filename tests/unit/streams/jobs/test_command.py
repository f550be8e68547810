"""How commands that run jobs end: each error has its status, and output that nobody reads any more is no error."""

from __future__ import annotations

import pytest
from django.core.management import CommandError
from django.db import OperationalError

from events.errors import UnknownRoom
from streams.errors import UnknownStream
from streams.jobs.command import as_command, as_command_errors
from streams.jobs.errors import QueueFull, UnknownKind, UnusableArguments
from streams.jobs.folders import is_any_folder


@pytest.mark.parametrize("block", [as_command_errors, as_command])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnusableArguments, 2),
        (UnknownKind, 2),
        (QueueFull, 1),
        (UnknownRoom, 1),
        (UnknownStream, 1),
        (OperationalError, 1),
    ],
)
def test_errors_are_told_with_their_status(block, error, status):
    with pytest.raises(CommandError, match="the reason") as told, block():
        raise error("the reason")
    assert told.value.returncode == status


def test_a_file_that_cannot_be_written_is_told_but_a_closed_output_ends_the_command_quietly():
    with pytest.raises(CommandError, match="No space left") as told, as_command():
        raise OSError(28, "No space left on device")
    assert told.value.returncode == 1
    with pytest.raises(BrokenPipeError), as_command_errors():
        raise BrokenPipeError


def test_only_a_command_that_runs_as_its_user_may_name_any_folder():
    with as_command_errors():
        assert not is_any_folder()
    with as_command():
        assert is_any_folder()
    assert not is_any_folder()
