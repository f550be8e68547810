"""Room histories as files of JSON Lines, made quickly: real hashes, lawful auth events, forks, many small rooms and a large one.

About 86 % are messages (among them threads and redactions), 14 % state, mostly memberships, and 2 % of the events stand on
two. The rooms are mixed as a server would have met them. A file is the work of one process; the same numbers give the same file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from events.sending.finish import finish_event

__all__ = ["make_history", "sizes_of_rooms"]

_WORDS = [
    "the",
    "a",
    "room",
    "says",
    "that",
    "what",
    "now",
    "we",
    "will",
    "this",
    "build",
    "is",
    "done",
    "again",
    "later",
]
_BODIES = [" ".join(_WORDS[(3 * n + k * k) % len(_WORDS)] for k in range(n)) for n in range(4, 40)]
_SETTINGS = ["shared", "shared", "shared", "joined", "invited", "world_readable"]
_MOST_MEMBERS = 4_000
_LINES_PER_WRITE = 1_000


def sizes_of_rooms(events: int, rooms: int, largest: int) -> list[int]:
    """How many events each room has: one ``largest``, the others of very different sizes."""
    weights = [random.Random(number).paretovariate(1.3) for number in range(rooms - 1)]  # noqa: S311 - made up, not secret
    left = events - largest
    least = 8
    share = (left - least * len(weights)) / sum(weights)
    sizes = [largest, *(least + int(weight * share) for weight in weights)]
    sizes[-1] += events - sum(sizes)
    return sizes


def make_history(folder: Path, sizes: Sequence[int], files: int = 2) -> list[Path]:
    """Write the rooms of these sizes into so many files; returns their paths."""
    paths = [folder / f"history-{number}.jsonl" for number in range(files)]
    shares = [[(number, size) for number, size in enumerate(sizes) if number % files == file] for file in range(files)]
    with ProcessPoolExecutor(files) as pool:
        list(pool.map(_write, paths, shares))
    return paths


def _write(path: Path, rooms: Sequence[tuple[int, int]]) -> None:
    choose = random.Random(rooms[0][0])  # noqa: S311 - made up, not secret
    places = [place for place, (_, size) in enumerate(rooms) for _ in range(size)]
    choose.shuffle(places)
    made = [_Room(number, size).lines() for number, size in rooms]
    with path.open("w") as file:
        for start in range(0, len(places), _LINES_PER_WRITE):
            file.write("".join(next(made[place]) for place in places[start : start + _LINES_PER_WRITE]))


class _Room:
    """One room, in the order of its events."""

    def __init__(self, number: int, size: int) -> None:
        self._choose = random.Random(number)  # noqa: S311 - made up, not secret
        self._version = self._choose.choice(["10", "10", "11"])
        self._users = [f"@user{n}:s{n % 7}.example.org" for n in range(max(3, min(size // 25, _MOST_MEMBERS)))]
        self._founder = self._users[0]
        self._room_id = f"!room{number}:{self._founder.partition(':')[2]}"  # event auth wants both on one server
        self._state: dict[tuple[str, str], str] = {}
        self._joined: list[str] = []
        self._last: list[str] = []
        self._messages: list[str] = []
        self._depth = 0
        self._ts = 1_600_000_000_000 + number

    def lines(self) -> Iterator[str]:
        """Endless."""
        yield self._state_line(self._founder, "m.room.create", "", self._creation())
        yield self._member(self._founder, "join")
        levels = {"users": {self._founder: 100}, "state_default": 0, "events": {"m.room.power_levels": 100}}
        yield self._state_line(self._founder, "m.room.power_levels", "", levels)
        yield self._state_line(self._founder, "m.room.join_rules", "", {"join_rule": "public"})
        setting = {"history_visibility": self._choose.choice(_SETTINGS)}
        yield self._state_line(self._founder, "m.room.history_visibility", "", setting)
        yield self._member(self._users[1], "join")
        while True:
            if self._choose.random() < 0.02 and len(self._joined) > 2:
                yield from self._fork()
            else:
                yield self._any(self._choose.choice(self._joined))

    def _creation(self) -> dict[str, object]:
        return {"room_version": self._version, **({"creator": self._founder} if self._version == "10" else {})}

    def _fork(self) -> Iterator[str]:
        """Two users speak at once, or both change the state; the next event stands on both."""
        base = self._last
        tips = []
        one, other = self._choose.sample(self._joined, 2)
        for user in (one, other):
            self._last = base
            if self._choose.random() < 0.3:
                topic = {"topic": f"{self._depth} by {user}"}
                yield self._state_line(user, self._choose.choice(["m.room.topic", "m.room.name"]), "", topic)
            else:
                yield self._message(user)
            tips += self._last
            self._depth -= 1
        self._depth += 1
        self._last = tips
        yield self._message(self._choose.choice(self._joined))

    def _any(self, user: str) -> str:
        chance = self._choose.random()
        if chance < 0.1:
            return self._membership()
        if chance < 0.12:
            return self._state_line(user, "m.room.topic", "", {"topic": f"topic {self._depth}"})
        if chance < 0.14 and self._messages:
            return self._redaction(user)
        return self._message(user)

    def _membership(self) -> str:
        user = self._choose.choice(self._users)
        if user not in self._joined:
            return self._member(user, "join")
        if user != self._founder and len(self._joined) > 2 and self._choose.random() < 0.3:
            return self._member(user, "leave")
        return self._member(user, "join")  # another name

    def _member(self, user: str, membership: str) -> str:
        line = self._state_line(
            user, "m.room.member", user, {"membership": membership, "displayname": f"{user[1:6]} {self._depth}"}
        )
        if membership == "leave":
            self._joined.remove(user)
        elif user not in self._joined:
            self._joined.append(user)
        return line

    def _auth(self, sender: str, *more: tuple[str, str]) -> list[str]:
        keys = [("m.room.create", ""), ("m.room.power_levels", ""), ("m.room.member", sender), *more]
        return [self._state[key] for key in keys if key in self._state]

    def _state_line(self, sender: str, event_type: str, state_key: str, content: dict[str, object]) -> str:
        more = [("m.room.join_rules", "")] if event_type == "m.room.member" and content["membership"] == "join" else []
        self._step()
        event = finish_event(
            {
                "auth_events": self._auth(sender, *more) if event_type != "m.room.create" else [],
                "content": content,
                "depth": self._depth,
                "origin_server_ts": self._ts,
                "prev_events": self._last,
                "room_id": self._room_id,
                "sender": sender,
                "signatures": self._signatures(sender),
                "state_key": state_key,
                "type": event_type,
            },
            self._version,
        )
        self._state[event_type, state_key] = event.event_id
        self._last = [event.event_id]
        return self._wrapped(event.event_id, event.json.decode())

    def _step(self) -> None:
        self._depth += 1
        self._ts += self._choose.randrange(60_000)

    def _signatures(self, sender: str) -> dict[str, dict[str, str]]:
        signature = base64.b64encode(self._choose.randbytes(64)).rstrip(b"=").decode()
        return {sender.partition(":")[2]: {"ed25519:a_made": signature}}

    def _message(self, sender: str) -> str:
        content = {"body": f"{self._depth} {self._choose.choice(_BODIES)}", "msgtype": "m.text"}
        if self._messages and self._choose.random() < 0.05:
            target = self._choose.choice(self._messages)
            content = {"body": "+1", "m.relates_to": {"event_id": target, "rel_type": "m.thread"}, "msgtype": "m.text"}  # type: ignore[dict-item]
        line = self._quick(sender, "m.room.message", json.dumps(content, separators=(",", ":")), "{}", "")
        self._messages.append(self._last[0])
        if len(self._messages) > 100:
            del self._messages[:50]
        return line

    def _redaction(self, sender: str) -> str:
        target = self._choose.choice(self._messages)
        if self._version == "11":
            content = json.dumps({"redacts": target})
            return self._quick(sender, "m.room.redaction", content, f'{{"redacts":"{target}"}}', "")
        return self._quick(sender, "m.room.redaction", '{"reason":"spam"}', "{}", f'"redacts":"{target}",')

    def _quick(self, sender: str, event_type: str, content: str, kept: str, redacts: str) -> str:
        """A message: canonical JSON without a detour, because most events are messages."""
        self._step()
        content = content.replace('": ', '":')
        auth = json.dumps(self._auth(sender), separators=(",", ":"))
        prev = json.dumps(self._last, separators=(",", ":"))
        middle = f'"origin_server_ts":{self._ts},"prev_events":{prev},'
        end = f'"room_id":"{self._room_id}","sender":"{sender}",'
        last = f'"type":"{event_type}"}}'
        whole = f'{{"auth_events":{auth},"content":{content},"depth":{self._depth},{middle}{redacts}{end}{last}'
        hashes = f'"hashes":{{"sha256":"{_digest(whole)}"}},'
        pruned = f'{{"auth_events":{auth},"content":{kept},"depth":{self._depth},{hashes}{middle}{end}{last}'
        event_id = "$" + _digest(pruned).replace("+", "-").replace("/", "_")
        signatures = f'"signatures":{json.dumps(self._signatures(sender), separators=(",", ":"))},'
        begin = f'{{"auth_events":{auth},"content":{content},"depth":{self._depth},{hashes}{middle}'
        event = f"{begin}{redacts}{end}{signatures}{last}"
        self._last = [event_id]
        return self._wrapped(event_id, event)

    def _wrapped(self, event_id: str, event: str) -> str:
        return f'{{"event_id":"{event_id}","room_version":"{self._version}","json":{event}}}\n'


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
