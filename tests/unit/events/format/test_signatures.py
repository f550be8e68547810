"""Signatures of a real server's events, and what can be wrong with one."""

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from events.format import signatures as module
from events.format.canonical_json import encode
from events.format.signatures import is_public_key, signed_by
from state.rules.room_versions import room_version
from tests.support.room_data import ROOM_NAMES, ROOMS, stored_events
from tests.support.signed_events import event_is_signed, is_signed

KEYS = json.loads((ROOMS / "server_keys.json").read_bytes())


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_events_of_real_servers_verify(room):
    checked = 0
    for stored in stored_events(room)[:60]:
        event, version = stored["json"], room_version(stored["room_version"])
        server = event["sender"].partition(":")[2]
        assert event_is_signed(event, version, server, KEYS[server]), stored["event_id"]
        assert not event_is_signed({**event, "depth": event["depth"] + 1}, version, server, KEYS[server])
        checked += 1
    assert checked > 30


PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = base64.b64encode(PRIVATE.public_key().public_bytes_raw()).decode().rstrip("=")


def signed(value):
    signature = base64.b64encode(PRIVATE.sign(encode(value))).decode().rstrip("=")
    return {**value, "signatures": {"id.test": {"ed25519:0": signature}}}


def test_any_of_the_keys_will_do():
    other = base64.b64encode(bytes(32)).decode()
    assert signed_by(signed({"mxid": "@x:a", "token": "t"}), [other, PUBLIC])
    assert not signed_by(signed({"mxid": "@x:a"}), [other])


def test_urlsafe_keys_are_read_too():
    assert signed_by(signed({"a": 1}), [PUBLIC.translate(str.maketrans("+/", "-_"))])


def test_unsigned_does_not_count():
    assert is_signed({**signed({"a": 1}), "unsigned": {"age": 5}}, "id.test", {"ed25519:0": PUBLIC})


@pytest.mark.parametrize(
    "signatures", [None, [], {}, {"id.test": None}, {"id.test": {"ed25519:0": 5}}, {"id.test": {"ed25519:0": "é"}},
                   {"id.test": {"rsa:0": "AAAA"}}, {"id.test": {"ed25519:0": "A"}}]
)  # fmt: skip
def test_unreadable_signatures_are_none(signatures):
    assert not signed_by({"a": 1, "signatures": signatures}, [PUBLIC])
    assert not is_signed({"a": 1, "signatures": signatures}, "id.test", {"ed25519:0": PUBLIC})


@pytest.mark.parametrize("key", ["", "x", "é", "AAAA"])
def test_unreadable_keys_verify_nothing(key):
    assert not signed_by(signed({"a": 1}), [key])


def test_value_without_canonical_form_is_not_signed():
    assert not signed_by({"a": "\ud800", "signatures": {"s": {"ed25519:0": "AAAA"}}}, [PUBLIC])


# --- keys that anybody can sign with --------------------------------------------------------------------------------------

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
SIGN = 1 << 255


def x_squared(y):
    return (y * y - 1) * pow(D * y * y + 1, -1, P) % P


def doubled(y):
    """The y of twice a point; its x takes no part but by its square."""
    square = x_squared(y)
    return (y * y + square) * pow(1 - D * square * y * y, -1, P) % P


def root(square):
    """A square root modulo P, or null."""
    found = pow(square, (P + 3) // 8, P)
    return next((one for one in (found, found * pow(2, (P - 1) // 4, P) % P) if one * one % P == square % P), None)


def small_order():
    """The y of all points of which eight times is nothing."""
    eighth = {y for r in (root(1 + D), -root(1 + D)) if (y := root((r - 1) * pow(D, -1, P))) is not None}
    found = {1, P - 1, 0, *eighth, *(P - y for y in eighth)}
    assert len(found) == 5 and all(doubled(doubled(doubled(y))) == 1 for y in found)
    return sorted(found)


def base64_of(*numbers):
    return base64.b64encode(b"".join(number.to_bytes(32, "little") for number in numbers)).decode()


@pytest.mark.parametrize("y", [y + more for y in (*small_order(), P, P + 1) for more in (0, SIGN)])
def test_a_point_of_small_order_verifies_nothing(y):
    """With such a key one signature is good for a part of all messages, or for all; servers in use refuse it."""
    assert not is_public_key("ed25519:1", base64_of(y))
    for point in (1, 0, P - 1, 1 | SIGN):
        signatures = {"a.test": {"ed25519:1": base64_of(point, 0)}}
        for number in range(12):
            value = {"n": number, "signatures": signatures}
            assert not signed_by(value, [base64_of(y)]) and not is_signed(value, "a.test", {"ed25519:1": base64_of(y)})


@pytest.mark.parametrize("y", [P + 2, P + 3, P + 18, 2**255 - 1, P + 3 + SIGN])
def test_a_key_is_written_in_one_way_only(y):
    assert not is_public_key("ed25519:1", base64_of(y))


def test_of_many_signatures_and_keys_few_are_tried(monkeypatch):
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    others = [
        base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw()).decode() for _ in range(500)
    ]
    value = {"mxid": "@bob:b.test", "token": "t"}
    good = base64.b64encode(key.sign(encode(value))).decode()
    bad = {f"ed25519:{n}": base64_of(n + 7, n) for n in range(500)}
    verify, tried = module._verifies, []
    monkeypatch.setattr(module, "_verifies", lambda *given: tried.append(given) or verify(*given))
    assert not signed_by({**value, "signatures": {"a.test": bad}}, others)
    assert len(tried) == 16 * 16
    assert signed_by({**value, "signatures": {"a.test": {"ed25519:good": good, **bad}}}, [public, *others])
    assert signed_by({**value, "signatures": {"a.test": {"ed25519:1": good}}}, [public] * 20 + others)
