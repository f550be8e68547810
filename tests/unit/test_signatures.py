"""Signatures of a real server's events, and what can be wrong with one."""

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from events.canonical import encode
from events.signatures import event_is_signed, is_signed, signed_by
from state.room_versions import room_version
from tests.room_data import ROOM_NAMES, ROOMS, stored_events

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
