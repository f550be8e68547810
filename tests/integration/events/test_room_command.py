"""``manage.py room``: each of its words does what another command does, and former names say what they are called now."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from events.models import Event, ForwardExtremity, Room
from tests.integration.events.test_purging import middle, talked_room

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments):
    """The object printed, and what was said on standard error."""
    out, err = io.StringIO(), io.StringIO()
    call_command(*arguments, "--json", stdout=out, stderr=err)
    return json.loads(out.getvalue()), err.getvalue()


@pytest.fixture
def room_id():
    return talked_room(12).room_id


@pytest.mark.parametrize(
    ("former", "words", "more"),
    [
        ("check_room", "room check", []),
        ("compress_state", "room compress", ["--dry-run"]),
        ("archive", "room archive", ["{folder}"]),
        ("export", "room export", None),
        ("restore", "room restore", None),
    ],
)
def test_a_former_name_does_the_same_and_says_so(room_id, tmp_path, former, words, more):
    said = f"manage.py {former} is manage.py {words} now"
    if more is None:
        with pytest.raises(CommandError) as refused:
            call_command(former, stdout=io.StringIO(), stderr=io.StringIO())
        assert refused.value.returncode != 0
        return
    given = [room_id, *(one.format(folder=tmp_path) for one in more)]
    (was, told), (now, silent) = run(former, *given), run(*words.split(), *given)
    for one in (was, now):
        for name in ("folder", "bytes"):  # of its own job
            one.pop(name, None)
    assert was == now
    assert said in told and said not in silent


def test_mend_is_resync_of_rooms(room_id):
    ForwardExtremity.objects.filter(room_id=room_id).delete()
    mended, _ = run("room", "mend", room_id)
    assert mended["what"] == "rooms" and mended["rooms_wrong"] == 1 and mended["left"] == 0
    assert run("room", "check", room_id)[0]["clean"] is True


def test_purge_is_of_history_or_of_the_whole_room(room_id):
    events = Event.objects.filter(outlier=False).count()
    done, _ = run("room", "purge", room_id, "--before-token", f"t{middle(room_id, 0.5)}-0", "--delete-local", "--yes")
    assert done["deleted"] > 0 and Event.objects.filter(outlier=False).count() < events
    done, _ = run("room", "purge", room_id, "--whole", "--force", "--yes")
    assert done["blocked"] is False and not Room.objects.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--whole", "--delete-local"], "--delete-local goes without --whole."),
        (["--before", "$e", "--force"], "--force needs --whole."),
    ],
)
def test_options_of_the_other_are_refused(options, said):
    with pytest.raises(CommandError) as refused:
        call_command("room", "purge", "!a:b", *options)
    assert (str(refused.value), refused.value.returncode) == (said, 2)
