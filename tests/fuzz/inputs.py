"""Random input for the wire: from the grammar of the commands, from broken grammar, and from bytes.

Everything comes from one `random.Random`, so a number is enough to make an input again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from streams.replication.errors import UnsendableCommand
from streams.replication.protocol import commands as wire

__all__ = ["LIMIT_BYTES", "command", "data", "pieces"]

#: A short limit, so that short inputs cross it.
LIMIT_BYTES = 120

NASTY_TEXT = (
    "", " ", "a", "caches", "master", "localhost", "batch", "start", "end", "None", "null", "@u:h", "\t", "\r", "\x00",
    "\x7f", "\x85", "\u2028", "\ufeff", "\u202e", "é", "漢字", "\U0001f600", "%s", "%", "{0}", "\\", '"', "'",
    "0", "-1", "+7", " 7 ", "7_0", "1__0", "٣", "0x10", "1e3", "1.0", "NaN", "Infinity", "-0",
    str(2**31), str(2**63 - 1), str(2**63), str(-(2**63)), str(-(2**63) - 1), "9" * 40, "9" * 110,
    "[]", "{}", "[1]", "[[", "]", "[null,null,null,null,5]", '["a"]', '"\\ud800"', "1e999", "-0.0", "tru", "[" * 100, "x" * 119,
)  # fmt: skip
WORDS = (*wire.COMMANDS, "", "ping", "PING\t", "RDATA2", "GET", "POST", "\ufeffPING", "SERVER\r")
FRAGMENTS = (
    b"\n", b"\n\n", b" ", b"\r\n", b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf",
    b"PING 1\n", b"REPLICATE\n", b"REPLICATE \r\n", b"REPLICATE caches,events\n",
    b"NAME x\n", b"RDATA caches w 5 []\n", b"RDATA caches w batch []\n",
    b"POSITION caches w 1 5\n", b"SERVER localhost\n", b"ERROR x\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"[" * 60,
    b"\x16\x03\x01\x02\x00",
)  # fmt: skip


def data(rng: random.Random) -> bytes:
    """One input: what a peer might send, or what nobody ever should."""
    makers: tuple[Callable[[random.Random], bytes], ...] = (
        _conversation,
        _broken_grammar,
        _mutated,
        _fragments,
        _noise,
    )
    return rng.choices(makers, (3, 4, 4, 2, 1))[0](rng)


def pieces(rng: random.Random, whole: bytes) -> list[bytes]:
    """The same bytes as a network may deliver them: cut anywhere, now and then byte by byte."""
    if rng.random() < 0.03:
        return [whole[n : n + 1] for n in range(len(whole))]
    cuts = sorted({0, len(whole), *(rng.randint(0, len(whole)) for _ in range(rng.randint(0, 6)))})
    return [whole[a:b] for a, b in pairwise(cuts)]


# --- from the grammar ---------------------------------------------------------------------------------------------


def command(rng: random.Random) -> wire.Command:
    """Some valid command, with odd values; a line may not be able to carry it."""
    word = rng.choice(list(wire.COMMANDS))
    kind = wire.COMMANDS[word].kind
    return kind(*(_value(rng, kind, name) for name in kind.__struct_fields__))


def _value(rng: random.Random, kind: type[wire.Command], name: str) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "row": lambda: _json(rng, 3), "streams": lambda: _names(rng), "is_syncing": lambda: rng.random() < 0.5,
    }  # fmt: skip
    if name in made:
        return made[name]()
    if name in ("previous", "new") or (name == "token" and kind is not wire.RData):
        return _number(rng, 2**63 - 1)
    if name == "token":
        return rng.choice([None, _number(rng, 2**63 - 1)])
    if name in ("last_sync_ms", "last_seen_ms"):
        return _number(rng, 2**80)
    if name == "streams":  # a set of names, which commas separate
        return tuple(
            sorted({name for name in (_text(rng) for _ in range(rng.randint(0, 3))) if name and "," not in name})
        )
    return _text_or_none(rng, name)


def _names(rng: random.Random) -> tuple[str, ...]:
    """A set of names, which commas separate. A carriage return before the end of the line is dropped."""
    found = {_text(rng).replace(",", "").replace("\r", "") for _ in range(rng.randint(0, 3))}
    return tuple(sorted(found - {""}))


def _text_or_none(rng: random.Random, name: str) -> str | None:
    if name in ("access_token", "ip", "user_agent", "device_id") and rng.random() < 0.3:
        return None
    return _text(rng)


def _number(rng: random.Random, largest: int) -> int:
    return rng.choice([0, 1, 2, 5, -1, -7, rng.randint(-100, 100), rng.randint(-largest, largest), largest, -largest])


def _text(rng: random.Random) -> str:
    return (
        rng.choice(NASTY_TEXT) if rng.random() < 0.6 else "".join(rng.choices("abcXYZ019_-@:!$ é", k=rng.randint(0, 8)))
    )


def _json(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([0, -1, 2**53 + 1, 2**64, -(2**70), rng.randint(-(10**6), 10**6)])
    if kind == 2:
        return rng.choice([0.0, -0.0, 1.5, 1e300, 5e-324, rng.random()])
    if kind < 6:
        return _text(rng)
    if kind == 6:
        return [_json(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {_text(rng): _json(rng, depth - 1) for _ in range(rng.randint(0, 2))}


def _line(rng: random.Random) -> bytes:
    try:
        return wire.format_line(command(rng), LIMIT_BYTES)
    except UnsendableCommand:
        return b"PING 1\n"


def _conversation(rng: random.Random) -> bytes:
    return b"".join(_line(rng) for _ in range(rng.randint(1, 6)))


# --- from broken grammar ------------------------------------------------------------------------------------------


def _broken_grammar(rng: random.Random) -> bytes:
    return b"".join(_line(rng) if rng.random() < 0.4 else _broken_line(rng) for _ in range(rng.randint(1, 5)))


def _broken_line(rng: random.Random) -> bytes:
    """Right words with too few, too many or wrong fields."""
    fields = [_text(rng) if rng.random() < 0.8 else json.dumps(_json(rng, 2)) for _ in range(rng.randint(0, 6))]
    line = rng.choice([" ", " ", " ", "  ", "\t"]).join([rng.choice(WORDS), *fields])
    return line.encode("utf-8", "surrogatepass") + rng.choice([b"\n", b"\n", b"\n", b"\r\n", b"", b"\n\n"])


# --- from bytes ---------------------------------------------------------------------------------------------------


def _mutated(rng: random.Random) -> bytes:
    """A valid conversation with a few bytes changed, put in, taken out, doubled or moved."""
    whole = bytearray(_conversation(rng))
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(whole))
        to = min(len(whole), at + rng.randint(1, 12))
        way = rng.randrange(6)
        if way == 0 and at < len(whole):
            whole[at] = rng.randrange(256)
        elif way == 1:
            whole[at:at] = rng.choice(FRAGMENTS)
        elif way == 2:
            del whole[at:to]
        elif way == 3:
            whole[at:at] = whole[at:to] * rng.randint(1, 20)
        elif way == 4 and at < len(whole):
            whole[at] ^= 1 << rng.randrange(8)
        else:
            whole[at:at] = rng.choice(NASTY_TEXT).encode()
    return bytes(whole)


def _fragments(rng: random.Random) -> bytes:
    return b"".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(1, 12)))


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(0, 3 * LIMIT_BYTES))
