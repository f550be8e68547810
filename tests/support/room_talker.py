"""A process that talks in rooms, for tests; run as a program under an instance name, it answers lines on stdin.

``send ROOM USER``, ``join ROOM USER``, ``leave ROOM USER``, ``invite ROOM SENDER USER`` print the position of the event and when
it was committed (``time.monotonic``, which processes of one machine share); ``typing ROOM USER`` and ``receipt ROOM USER EVENT``
likewise. ``persist FILE SIZE`` stores the events of a file, one a line, in batches. ``chatter SEED COUNT`` does as many random
things of users ``@u0:x`` … in all rooms there are, and prints how many.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.warm_start import WARM

__all__ = ["Talker", "chatter", "talkers"]

USERS = tuple(f"@u{n}:x" for n in range(4))


class Talker:
    """The other end: asks a talking process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, *words: str) -> None:
        """Have something done, and do not wait for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[int, float]:
        """(position or count, when it was there) of the oldest thing that was not waited for."""
        assert self.process.stdout is not None
        number, moment = self.process.stdout.readline().split()
        return int(number), float(moment)

    def do(self, *words: str) -> tuple[int, float]:
        """Have it done."""
        self.tell(*words)
        return self.answer()


@contextmanager
def talkers(database_url: str, *instances: str) -> Iterator[list[Talker]]:
    """Talking processes on the test database, one per instance name."""
    with ExitStack() as stack:
        found = []
        for instance in instances:
            process = WARM.popen(
                ("-m", "tests.support.room_talker", instance),
                {**os.environ, "DATABASE_URL": database_url},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.callback(_end, process)
            found.append(Talker(process))
        for talker in found:
            talker.do("ready")
        yield found


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.kill()  # its tables are going to be emptied
    process.wait()
    process.stdin.close()
    process.stdout.close()


def chatter(seed: str, count: int) -> int:
    """Random things; returns how many were allowed."""
    from events.errors import EventNotAllowed
    from events.models import Room
    from events.sending.send import LocalRoom

    chance, done = random.Random(seed), 0
    rooms = [LocalRoom(room_id) for room_id in sorted(Room.objects.values_list("room_id", flat=True))]
    for _ in range(count):
        room, user, other = chance.choice(rooms), chance.choice(USERS), chance.choice(USERS)
        act = chance.choice(["send", "send", "send", "join", "leave", "invite", "topic"])
        try:
            match act:
                case "send":
                    room.send(user, "m.room.message", {"body": "x"})
                case "join":
                    room.join(user)
                case "leave":
                    room.leave(user)
                case "invite":
                    room.invite(user, other)
                case _:
                    room.set_state(user, "m.room.topic", {"topic": str(chance.random())})
            done += 1
        except EventNotAllowed:
            continue
    return done


def persist_file(path: str, size: int) -> int:
    """Store the events of a file, of rooms that are stored; returns how many were."""
    from events.persist.batch import Incoming
    from tests.support.persisted_rooms import persist

    lines = Path(path).read_bytes().splitlines()
    batches = [[Incoming(line) for line in lines[n : n + size]] for n in range(0, len(lines), size)]
    return sum(len(persist(batch).stored) for batch in batches)


def _acts() -> dict[str, Callable[..., int]]:
    from events.sending.send import LocalRoom
    from streams.homeserver import append, typing

    return {
        "ready": lambda: 0,
        "send": lambda room, user: LocalRoom(room).send(user, "m.room.message", {"body": "x"}).stream_ordering,
        "join": lambda room, user: LocalRoom(room).join(user).stream_ordering,
        "leave": lambda room, user: LocalRoom(room).leave(user).stream_ordering,
        "invite": lambda room, sender, user: LocalRoom(room).invite(sender, user).stream_ordering,
        "typing": lambda room, user: typing.set_typing(room, user, True) or 0,
        "receipt": lambda room, user, event: append.add_receipt(room, "m.read", user, event, {"ts": 1}),
        "persist": lambda path, size: persist_file(path, int(size)),
        "chatter": lambda seed, count: chatter(seed, int(count)),
    }


def main() -> None:
    """Answer lines."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    django.setup()
    from streams.writing.name import use_instance

    use_instance(sys.argv[1])
    acts = _acts()
    for line in sys.stdin:
        act, *words = line.split()
        number = acts[act](*words)
        sys.stdout.write(f"{number} {time.monotonic()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
