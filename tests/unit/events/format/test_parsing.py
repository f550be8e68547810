"""A line becomes an event, or a reason."""

import base64
import json
from contextlib import suppress

import pytest
from msgspec.structs import replace

from events.errors import EventRefused, NotCanonical, Reason
from events.format.canonical_json import encode
from events.format.hashes import content_hash
from events.format.parsing import (
    LINE_LIMIT_BYTES,
    Verdict,
    announced_version,
    boolean,
    identifier,
    integer,
    optional_identifier,
    parse_line,
    parse_row,
    parse_stored,
    references,
    required,
    shown,
    storable,
)
from events.format.redaction import pruned_fields
from state.rules.room_versions import ROOM_VERSIONS, room_version
from tests.support.room_data import ROOM_NAMES, event_lines, stored_events


def event(**changes):
    """A bare event of version 10 as a dictionary; a change to ``...`` removes the key."""
    whole = {
        "type": "m.room.message",
        "room_id": "!r:a.test",
        "sender": "@u:a.test",
        "depth": 5,
        "origin_server_ts": 1_700_000_000_000,
        "prev_events": ["$p"],
        "auth_events": ["$a", "$b"],
        "content": {"body": "hello"},
        "hashes": {"sha256": "x"},
        "signatures": {},
    }
    found = {key: value for key, value in {**whole, **changes}.items() if value is not ...}
    if found.get("hashes") == {"sha256": "x"}:
        with suppress(NotCanonical, RecursionError):
            found["hashes"] = {"sha256": content_hash(found, room_version("1"))}
    return found


def line(wrapper=None, version="10", **changes):
    return json.dumps({"json": event(**changes), "room_version": version, **(wrapper or {})}).encode()


def refusal(text):
    with pytest.raises(EventRefused) as caught:
        parse_line(text)
    return caught.value


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_every_line_of_a_real_room_is_taken_with_its_exact_bytes(room):
    for text, stored in zip(event_lines(room), stored_events(room), strict=True):
        parsed = parse_line(text)
        assert parsed.event_id == stored["event_id"]
        assert parsed.json in text
        assert json.loads(parsed.json) == stored["json"]
        assert (parsed.depth, parsed.stream_ordering) == (stored["depth"], stored["stream_ordering"])
        assert (parsed.rejected_reason, parsed.soft_failed) == (stored["rejected_reason"], stored["soft_failed"])


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_bare_lines_of_a_real_room_parse_alike_once_the_create_event_told_its_version(room):
    wrapped = [parse_line(text) for text in event_lines(room)[:500]]
    versions = dict(filter(None, (announced_version(parsed.json) for parsed in wrapped)))
    for parsed in wrapped:
        bare = parse_line(parsed.json, versions)
        plain = replace(parsed, stream_ordering=None, rejected_reason=None, soft_failed=False, outlier=False)
        assert (parsed.rejection_given, parsed.soft_failure_given) == (True, True)
        assert bare == replace(plain, rejection_given=False, soft_failure_given=False)


@pytest.mark.parametrize(
    "wrapper, given",
    [({}, (False, False)), ({"rejected_reason": None}, (True, False)), ({"soft_failed": False}, (False, True))],
)
def test_what_the_wrapper_does_not_say_is_left_to_the_rules(wrapper, given):
    parsed = parse_line(line(wrapper))
    assert (parsed.rejection_given, parsed.soft_failure_given) == given
    assert (parsed.rejected_reason, parsed.soft_failed) == (None, False)


@pytest.mark.parametrize(
    "parts, kept",
    [
        ({"type": "m.room.join_rules", "state_key": "", "content": {"join_rule": "x"}}, {"join_rule": "x"}),
        ({"type": "m.room.third_party_invite", "state_key": "t", "content": {"public_key": "k"}}, {"public_key": "k"}),
        (
            {
                "type": "m.room.member",
                "state_key": "@u:a.test",
                "content": {"membership": "join", "displayname": "x", "join_authorised_via_users_server": "@v:a"},
            },
            {"join_authorised_via_users_server": "@v:a"},
        ),
        ({"content": {"body": "x"}}, {}),
    ],
)
def test_content_is_kept_where_rules_look_at_it(parts, kept):
    assert parse_line(line(**parts)).content == kept


def test_spaces_and_order_of_the_line_survive_in_the_stored_bytes():
    text = b' { "room_version" : "10" , "json" : { "type":"m.x" ,"content":{ "b":1, "a":"\\u0041" }' + (
        b',"room_id":"!r:a","sender":"@u:a","depth":1,"origin_server_ts":1,"prev_events":[],"auth_events":[],'
        b' "hashes":{"sha256":"HASH"}}} \r\n'
    )
    text = text.replace(b"HASH", content_hash(json.loads(text)["json"], room_version("10")).encode())
    assert parse_line(text).json.startswith(b'{ "type":"m.x" ,"content":{ "b":1, "a":"\\u0041" },')


def test_wrapper_keys_are_honoured_and_others_ignored():
    parsed = parse_line(
        line({"outlier": True, "rejected_reason": "auth", "soft_failed": True, "stream_ordering": -7, "x": 1})
    )
    assert (parsed.outlier, parsed.rejected_reason, parsed.soft_failed) == (True, "auth", True)
    assert parsed.stream_ordering == -7 and parsed.backfilled


def test_fields_are_extracted():
    content = {"membership": "join", "m.relates_to": {"event_id": "$t"}}
    parsed = parse_line(line(type="m.room.member", state_key="@u:a.test", content=content))
    assert (parsed.membership, parsed.relates_to, parsed.state_key) == ("join", "$t", "@u:a.test")
    assert (parsed.prev_event_ids, parsed.auth_event_ids) == (("$p",), ("$a", "$b"))


@pytest.mark.parametrize("version, place", [("10", "event"), ("11", "content")])
def test_redaction_target_is_found_where_the_version_has_it(version, place):
    changes = {"redacts": "$t"} if place == "event" else {"content": {"redacts": "$t"}}
    assert parse_line(line(version=version, type="m.room.redaction", **changes)).redacts == "$t"
    other = "11" if version == "10" else "10"
    assert parse_line(line(version=other, type="m.room.redaction", **changes)).redacts is None


@pytest.mark.parametrize("value", [5, None, [], "with\0nul", "x" * 256])
def test_content_that_no_column_can_hold_is_null_there_and_kept_in_the_json(value):
    parsed = parse_line(line(type="m.room.member", state_key="@u:a", content={"membership": value}))
    assert parsed.membership is None
    assert json.loads(parsed.json)["content"] == {"membership": value}


def test_nul_in_content_is_valid():
    assert b"\\u0000" in parse_line(line(content={"body": "a\0b"})).json


@pytest.mark.parametrize(
    "text, reason",
    [
        (b"", Reason.NOT_JSON),
        (b"{", Reason.NOT_JSON),
        (b'{"type": "m.x"', Reason.NOT_JSON),
        (b"\x00", Reason.NOT_JSON),
        (b"[]", Reason.NOT_AN_OBJECT),
        (b'"text"', Reason.NOT_AN_OBJECT),
        (b"17", Reason.NOT_AN_OBJECT),
        (b"null", Reason.NOT_AN_OBJECT),
        (b'{"json": null}', Reason.NOT_AN_OBJECT),
        (b'{"json": "{}"}', Reason.NOT_AN_OBJECT),
        (b'{"json": {"a":1,"a":2}, "room_version":"10"}', Reason.DUPLICATE_KEY),
        (b'{"json": {"a":{"b":[{"c":1,"\\u0063":2}]}}, "room_version":"10"}', Reason.DUPLICATE_KEY),
        (b'{"content":{"a":1.5,"a":1},"type":"m.x"}', Reason.DUPLICATE_KEY),
        (b'{"json": {"a":NaN}, "room_version":"10"}', Reason.BAD_NUMBER),
        (b'{"a":Infinity}', Reason.BAD_NUMBER),
        (b'{"a":"\xff"}', Reason.BAD_UNICODE),
        (b'{"a":"\\ud800"}', Reason.BAD_UNICODE),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", Reason.TOO_DEEP),
        (b'{"json": {"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", Reason.TOO_DEEP),
        (b" " + b'{"a":"' + b"x" * LINE_LIMIT_BYTES + b'"}', Reason.LINE_TOO_LONG),
        (b"{}", Reason.UNKNOWN_ROOM_VERSION),
        (b'{"json": {}}', Reason.UNKNOWN_ROOM_VERSION),
    ],
    ids=lambda value: str(value[:30]) if isinstance(value, bytes) else value.name,
)
def test_broken_text_has_its_reason(text, reason):
    assert refusal(text).reason == reason


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ('{"type":"m.x"}'.encode("utf-16"), Reason.NOT_JSON, "the line is UTF-16 text"),
        ('{"type":"m.x"}'.encode("utf-16-le"), Reason.NOT_JSON, "the line is UTF-16 text"),
        (b'[{"type":"m.x"}]', Reason.NOT_AN_OBJECT, "the line is a JSON array"),
        (b'\x1e{"type":"m.x"}', Reason.NOT_JSON, "the line is a JSON text sequence"),
        (b'{"type":"m.x"}\r{"type":"m.y"}', Reason.NOT_JSON, "carriage returns between the events"),
        (b'\xff{"a":1}', Reason.NOT_JSON, "not UTF-8: invalid start byte at byte 0"),
        (b'{"a":1}\xe9', Reason.NOT_JSON, "not UTF-8: unexpected end of data at byte 7"),
        (b'{"a":"\xe9"}', Reason.BAD_UNICODE, "not UTF-8: invalid continuation byte at byte 6"),
        (b'{"a":"\\udc00"}', Reason.BAD_UNICODE, "a lone surrogate escape"),
    ],
)
def test_a_line_of_another_form_is_called_what_it_is(text, reason, words):
    refused = refusal(text)
    assert refused.reason == reason and words in refused.detail
    assert reason == Reason.BAD_UNICODE or "surrogate" not in refused.detail


def test_a_byte_order_mark_is_ignored_and_not_stored():
    versions = {event()["room_id"]: "10"}
    for text in (line(), json.dumps(event()).encode()):
        marked = b"\xef\xbb\xbf" + text
        assert parse_line(marked, versions) == parse_line(text, versions)
        assert announced_version(marked) == announced_version(text)
    raw = json.dumps(event()).encode()
    assert parse_row(b"\xef\xbb\xbf" + raw, {"room_version": "10"}) == parse_row(raw, {"room_version": "10"})


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"type": ...}, Reason.MISSING_KEY),
        ({"sender": ...}, Reason.MISSING_KEY),
        ({"room_id": ...}, Reason.MISSING_KEY),
        ({"content": ...}, Reason.MISSING_KEY),
        ({"depth": ...}, Reason.MISSING_KEY),
        ({"origin_server_ts": ...}, Reason.MISSING_KEY),
        ({"prev_events": ...}, Reason.MISSING_KEY),
        ({"auth_events": ...}, Reason.MISSING_KEY),
        ({"type": 1}, Reason.WRONG_TYPE),
        ({"content": []}, Reason.WRONG_TYPE),
        ({"state_key": None}, Reason.WRONG_TYPE),
        ({"depth": "1"}, Reason.WRONG_TYPE),
        ({"depth": True}, Reason.WRONG_TYPE),
        ({"depth": 1.0}, Reason.BAD_NUMBER),
        ({"depth": -1}, Reason.OUT_OF_RANGE),
        ({"depth": 2**63}, Reason.BAD_NUMBER),
        ({"content": {"n": 2**53}}, Reason.BAD_NUMBER),
        ({"prev_events": {}}, Reason.WRONG_TYPE),
        ({"prev_events": [1]}, Reason.WRONG_TYPE),
        ({"prev_events": [["$p", {}]]}, Reason.WRONG_TYPE),
        ({"prev_events": ["p"]}, Reason.BAD_REFERENCE),
        ({"auth_events": ["$" + "x" * 255]}, Reason.IDENTIFIER_TOO_LONG),
        ({"sender": "u:a"}, Reason.BAD_IDENTIFIER),
        ({"sender": "@" + "u" * 1000 + ":a"}, Reason.IDENTIFIER_TOO_LONG),
        ({"sender": "@u\0:a"}, Reason.NUL_CHARACTER),
        ({"room_id": "r:a"}, Reason.BAD_IDENTIFIER),
        ({"state_key": "\0"}, Reason.NUL_CHARACTER),
        ({"state_key": "é" * 128}, Reason.IDENTIFIER_TOO_LONG),
        ({"type": "m" * 256}, Reason.IDENTIFIER_TOO_LONG),
        ({"content": {"body": "x" * 100_000}}, Reason.TOO_LARGE),
        ({"prev_events": [f"${n:043}" for n in range(10_000)]}, Reason.TOO_LARGE),
    ],
    ids=lambda value: str(value)[:50],
)
def test_broken_event_has_its_reason(changes, reason):
    assert refusal(line(**changes)).reason == reason


@pytest.mark.parametrize(
    "wrapper, reason",
    [
        ({"event_id": "$other"}, Reason.WRONG_EVENT_ID),
        ({"event_id": 5}, Reason.WRONG_EVENT_ID),
        ({"room_version": "99"}, Reason.UNKNOWN_ROOM_VERSION),
        ({"room_version": 10}, Reason.WRONG_TYPE),
        ({"outlier": 1}, Reason.WRONG_TYPE),
        ({"soft_failed": "no"}, Reason.WRONG_TYPE),
        ({"rejected_reason": False}, Reason.WRONG_TYPE),
        ({"rejected_reason": "\0"}, Reason.NUL_CHARACTER),
        ({"stream_ordering": "5"}, Reason.WRONG_TYPE),
        ({"stream_ordering": 2**63}, Reason.OUT_OF_RANGE),
        ({"stream_ordering": 1.5}, Reason.WRONG_TYPE),
    ],
    ids=str,
)
def test_broken_wrapper_has_its_reason(wrapper, reason):
    assert refusal(line(wrapper)).reason == reason


def test_255_bytes_are_not_too_long():
    assert parse_line(line(state_key="é" * 127 + "x")).state_key == "é" * 127 + "x"


def test_unsigned_does_not_count_against_the_size_limit():
    assert parse_line(line(unsigned={"x": "y" * 100_000})).depth == 5


def test_a_thousand_prev_events_are_taken_once_each():
    ids = [f"${number:040}" for number in range(1000)]
    assert parse_line(line(prev_events=ids + ids[:300])).prev_event_ids == tuple(ids)


def old(**changes):
    pairs = {"event_id": "$e:a.test", "prev_events": [["$p:a.test", {"sha256": "h"}]], "auth_events": []}
    return line(version="1", **{**pairs, **changes})


def test_old_versions_choose_their_ids_and_refer_by_pairs():
    parsed = parse_line(old())
    assert (parsed.event_id, parsed.prev_event_ids) == ("$e:a.test", ("$p:a.test",))


def test_old_versions_let_floats_and_large_integers_through():
    assert parse_line(old(content={"f": 1.5, "n": 2**60})).event_id == "$e:a.test"


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"event_id": ...}, Reason.MISSING_KEY),
        ({"event_id": "e"}, Reason.BAD_IDENTIFIER),
        ({"prev_events": ["$p:a"]}, Reason.BAD_REFERENCE),
        ({"prev_events": [["$p:a"]]}, Reason.BAD_REFERENCE),
        ({"prev_events": [["$e:a.test", {}]]}, Reason.BAD_REFERENCE),
        ({"auth_events": [["$e:a.test", {}]]}, Reason.BAD_REFERENCE),
        ({"depth": 2**63}, Reason.OUT_OF_RANGE),
        ({"depth": 10**300}, Reason.OUT_OF_RANGE),
    ],
    ids=str,
)
def test_broken_old_event_has_its_reason(changes, reason):
    assert refusal(old(**changes)).reason == reason


def test_version_12_takes_the_room_id_from_the_create_event():
    text = line(version="12", type="m.room.create", state_key="", room_id=..., prev_events=[], auth_events=[])
    parsed = parse_line(text)
    assert parsed.room_id == "!" + parsed.event_id[1:]


def test_version_12_create_event_must_not_name_a_room():
    assert refusal(line(version="12", type="m.room.create", state_key="")).reason == Reason.BAD_IDENTIFIER


def test_bare_event_of_a_room_without_server_is_of_version_12():
    assert parse_line(json.dumps(event(room_id="!abc")).encode()).room_version == "12"


def test_bare_create_event_without_version_is_of_version_1():
    text = json.dumps(
        event(type="m.room.create", state_key="", event_id="$e:a", prev_events=[], auth_events=[])
    ).encode()
    assert announced_version(text) == ("!r:a.test", "1")


@pytest.mark.parametrize("text", [b"m.room.create", b"{}", line(), line(content={"a": "m.room.create"})])
def test_other_lines_announce_nothing(text):
    assert announced_version(text) is None


def test_content_is_kept_only_where_rules_need_it():
    assert parse_line(line(type="m.room.power_levels", state_key="", content={"ban": 1})).content == {"ban": 1}
    assert parse_line(line()).content == {}


def test_refusal_survives_pickling_with_its_reason():
    import pickle

    refused = refusal(b"[]")
    again = pickle.loads(pickle.dumps(refused))
    assert (again.reason, again.detail) == (refused.reason, refused.detail)


# --- events whose content does not fit their hash ------------------------------------------------------------------------

LIE = "I owe you 1000000"
MISFITS = {
    "another hash": {"sha256": base64.b64encode(b"x" * 32).decode().rstrip("=")},
    "none": ...,
    "no sha256": {},
    "other algorithms only": {"sha512": "x", "md5": "y"},
    "no string": {"sha256": 1},
    "a list": {"sha256": ["x"]},
    "null": None,
    "no object": "x",
    "no base64": {"sha256": "!!!"},
}


def misfit(version="10", hashes=MISFITS["another hash"], **changes):
    """The bytes of an event that says more than its hash does."""
    whole = event(hashes=hashes, content={"body": LIE, "m.relates_to": {"event_id": "$t"}}, **changes)
    if version in ("1", "2"):
        whole |= {"event_id": "$chosen:a.test", "prev_events": [["$p:a", {}]], "auth_events": []}
    return json.dumps(whole | {"unsigned": {"age": 1}, "more": LIE}).encode()


def read(text, version="10", told=None):
    return parse_row(text, {"room_version": version, **(told or {})})


@pytest.mark.parametrize("hashes", MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("version", ROOM_VERSIONS)
def test_what_does_not_fit_its_hash_is_redacted_before_anything_looks_at_it(version, hashes):
    text = misfit(version, hashes)
    parsed = read(text, version)
    assert LIE.encode() not in parsed.json and parsed.relates_to is None and not parsed.content_hash_matches
    rules = room_version(version)
    assert parsed.json == encode(pruned_fields(json.loads(text), rules), strict=rules.strict_json)
    assert json.loads(parsed.json)["content"] == {} and "unsigned" not in json.loads(parsed.json)


def test_its_id_is_that_of_the_event_as_it_was_made():
    made = event()
    text = json.dumps(made | {"content": {"body": LIE}}).encode()
    assert read(text).event_id == read(json.dumps(made).encode()).event_id


def test_what_is_kept_of_it_is_kept_as_it_is_when_it_comes_again():
    kept = read(misfit()).json
    again = read(b" " + kept.replace(b",", b" , ") + b"\n")
    assert again.json == kept.replace(b",", b" , ") and not again.content_hash_matches


@pytest.mark.parametrize("form", ["padded", "urlsafe", "padded and urlsafe", "beside others"])
def test_a_hash_counts_by_its_bytes(form):
    for number in range(64):  # some have the characters that differ
        made = event(content={"n": number})
        told = made["hashes"]["sha256"]
        told += "=" if "padded" in form else ""
        told = told.translate(str.maketrans("+/", "-_")) if "urlsafe" in form else told
        made["hashes"] = {"sha256": told} | ({"sha3": "x"} if "beside" in form else {})
        text = json.dumps(made).encode()
        assert read(text).json == text and read(text).content_hash_matches


@pytest.mark.parametrize("told", ["{}==", "{}A", "A{}", " {}", "{}\n", "{}!"])
def test_a_hash_with_more_to_it_does_not_fit(told):
    made = event()
    made["hashes"] = {"sha256": told.format(made["hashes"]["sha256"])}
    assert read(json.dumps(made).encode()).content_hash_matches is False


def test_what_rules_ask_for_is_that_of_the_redacted_form():
    invite = {"membership": "invite", "third_party_invite": {"signed": {"token": "t"}, "display_name": LIE}}
    parts = {"type": "m.room.member", "state_key": "@v:b", "hashes": {}, "content": invite}
    old, new = (read(json.dumps(event(**parts)).encode(), version) for version in ("10", "11"))
    assert old.content == {} and old.membership == new.membership == "invite"
    assert new.content == {"third_party_invite": {"signed": {"token": "t"}}} and LIE.encode() not in new.json
    redaction = event(type="m.room.redaction", redacts="$t", hashes={}, content={"redacts": "$t", "reason": LIE})
    old, new = (read(json.dumps(redaction).encode(), version) for version in ("10", "11"))
    assert (old.redacts, new.redacts) == (None, "$t")


def test_numbers_of_old_versions_stay_as_they_are_in_it():
    levels = {"users": {"@u:a.test": 100.0}, "users_default": 2**60, "notifications": {"room": LIE}}
    text = json.dumps(event(type="m.room.power_levels", state_key="", hashes={}, content=levels)).encode()
    assert json.loads(read(text, "5").json)["content"] == {"users": {"@u:a.test": 100.0}, "users_default": 2**60}


def test_a_stored_event_that_should_be_redacted_tells_its_form():
    text = misfit()
    right = read(text)
    found = stored(text, "10", right.event_id)
    assert found.json == right.json and found.relates_to is None
    assert stored(right.json, "10", right.event_id).json == b""


# --- stored events ----------------------------------------------------------------------------------------------------

TOLD = Verdict(False, None, True, 7, True, True)


def stored(json, version, event_id):
    return parse_stored(json, room_version(version), event_id, TOLD, {})


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_stored_event_is_what_was_parsed_with_its_verdict(room):
    for text in event_lines(room)[:300]:
        parsed = parse_line(text)
        expected = replace(parsed, json=b"", content_hash_matches=True, **TOLD._asdict())
        found = stored(parsed.json, parsed.room_version, parsed.event_id)
        assert replace(found, content_hash_matches=True) == expected


def test_a_stored_event_with_a_key_twice_is_refused_where_that_is_wanted():
    parsed = parse_line(line())
    twice = parsed.json.replace(b'"content":', b'"content":{},"content":', 1)
    version, known = room_version("10"), parsed.event_id
    assert parse_stored(twice, version, known, TOLD, {}).event_id == known
    with pytest.raises(EventRefused) as refused:
        parse_stored(twice, version, known, TOLD, {}, unique_keys=True)
    assert refused.value.reason is Reason.DUPLICATE_KEY
    assert parse_stored(parsed.json, version, known, TOLD, {}, unique_keys=True).event_id == known


def test_stored_events_share_equal_values():
    kept, parsed = {}, parse_line(line())
    one, other = (
        parse_stored(parsed.json, room_version("10"), parsed.event_id, TOLD, kept) for _ in range(2)
    )  # fmt: skip
    assert one.sender is other.sender and one.auth_event_ids is other.auth_event_ids


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"sender": "@other:a.test"}, Reason.WRONG_EVENT_ID),
        ({"depth": 7}, Reason.WRONG_EVENT_ID),
        ({"prev_events": ["$q"]}, Reason.WRONG_EVENT_ID),
        ({"content": "no object"}, Reason.WRONG_TYPE),
        ({"content": {"number": 1.5}, "depth": 7}, Reason.BAD_NUMBER),
        ({"auth_events": ...}, Reason.WRONG_EVENT_ID),
    ],
)
def test_damaged_stored_event_has_its_reason(changes, reason):
    right = parse_line(line())
    with pytest.raises(EventRefused) as caught:
        stored(json.dumps(event(**changes)).encode(), "10", right.event_id)
    assert caught.value.reason is reason


@pytest.mark.parametrize("text", [b"", b"[]", b"3", b"{}", b'{"a":', b"\xff"])
def test_stored_text_that_is_no_event_is_refused(text):
    with pytest.raises((EventRefused, ValueError)):
        stored(text, "10", "$x")


def test_what_the_hash_does_not_cover_is_looked_at():
    text = line(type="m.room.redaction", redacts=["nothing"], content={"m.relates_to": 3})
    parsed = parse_line(text)
    assert parsed.json in text and parsed.content_hash_matches
    found = stored(parsed.json, "10", parsed.event_id)
    assert (found.redacts, found.relates_to) == (None, None)


TELLING = ("event_id", "room_version", "outlier", "rejected_reason", "soft_failed", "stream_ordering")


@pytest.mark.parametrize("room", ["v10_rejected", "v12_power_fork"])
def test_a_row_is_parsed_like_the_line_with_the_same_wrapper(room):
    for line in event_lines(room):
        whole = json.loads(line)
        text = line[line.index(b'"json":') + 7 : -1]
        assert parse_row(text, {key: whole[key] for key in TELLING}) == parse_line(line)


def test_what_a_row_does_not_tell_is_left_to_the_rules_and_null_is_told():
    event = json.dumps(stored_events("v9_restricted")[0]["json"]).encode()
    silent, null = parse_row(event, {}), parse_row(event, {"rejected_reason": None, "soft_failed": None})
    assert not silent.rejection_given and not silent.soft_failure_given and silent.room_version == "9"
    assert null.rejection_given and null.soft_failure_given


def test_nothing_of_a_rows_text_counts_as_a_wrapper():
    text = b'{"type": "m.room.message"}, "soft_failed": true, "x": {}'
    with pytest.raises(EventRefused) as refused:
        parse_row(text, {"room_version": "10"})
    assert refused.value.reason is Reason.NOT_JSON


def test_a_row_is_no_longer_than_a_line():
    with pytest.raises(EventRefused) as refused:
        parse_row(b" " * (LINE_LIMIT_BYTES + 1), {})
    assert refused.value.reason is Reason.LINE_TOO_LONG


def test_a_row_of_a_create_event_announces_its_version():
    first = stored_events("v9_restricted")[0]
    event = json.dumps(first["json"]).encode()
    assert announced_version(event, {}) == announced_version(event) == (first["room_id"], "9")


@pytest.mark.parametrize("opened, closed", [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("key, reason", [("event_id", Reason.WRONG_EVENT_ID), ("room_version", Reason.WRONG_TYPE)])
def test_what_a_wrapper_says_may_be_nested_as_deep_as_can_be_read(key, reason, opened, closed):
    for depth in range(850, 1010):
        text = line().replace(b'"room_version": "10"', f'"{key}": {opened * depth}1{closed * depth}'.encode())
        given = text if key == "room_version" else text.replace(b'"event_id"', b'"room_version": "10", "event_id"')
        assert refusal(given).reason in (reason, Reason.TOO_DEEP)
        assert announced_version(given.replace(b"m.room.message", b"m.room.create")) is None


# --- single fields: what is taken, and what is said of what is not ---------------------------------------------------


def refused(check, *arguments):
    with pytest.raises(EventRefused) as caught:
        check(*arguments)
    return caught.value.reason, caught.value.detail


@pytest.mark.parametrize(
    ("value", "kind", "taken"),
    [(1, int, True), (True, int, False), (1.0, int, False), ("1", int, False), ({}, dict, True), (None, dict, False),
     ([], list, True), ((), list, False)],
)  # fmt: skip
def test_a_required_field_is_of_that_very_type(value, kind, taken):
    if taken:
        assert required({"a": value}, "a", kind) == value
    else:
        assert refused(required, {"a": value}, "a", kind)[0] is Reason.WRONG_TYPE


def test_a_field_that_is_not_there_is_named():
    assert refused(required, {}, "depth", int) == (Reason.MISSING_KEY, "depth is missing")


@pytest.mark.parametrize(
    ("value", "reason"),
    [("a\0b", Reason.NUL_CHARACTER), ("\ud800", Reason.BAD_UNICODE), ("x" * 256, Reason.IDENTIFIER_TOO_LONG),
     ("é" * 128, Reason.IDENTIFIER_TOO_LONG), (5, Reason.WRONG_TYPE), (None, Reason.WRONG_TYPE)],
)  # fmt: skip
def test_text_that_a_column_cannot_hold_is_refused(value, reason):
    assert refused(storable, value, "state_key")[0] is reason
    assert "state_key" in refused(storable, value, "state_key")[1]


def test_text_of_just_the_longest_size_is_taken():
    for text in ("x" * 255, "é" * 127 + "x", ""):
        assert storable(text, "type") == text
    assert storable("x" * 10_000, "rejected_reason", limit_bytes=None)


@pytest.mark.parametrize("value", ["u:a", "", "@" + "x" * 255, "@a\0", None, ["@a"]])
def test_an_identifier_begins_with_its_sigil_and_is_storable(value):
    assert identifier({"sender": "@u:a"}, "sender", "@") == "@u:a"
    assert "sender" in refused(identifier, {"sender": value}, "sender", "@")[1]


@pytest.mark.parametrize("value", [None, 5, "a\0b", "x" * 256, "é" * 128, {"a": 1}])
def test_what_content_names_may_be_anything(value):
    assert optional_identifier(value) is None
    assert optional_identifier("$e") == "$e"


@pytest.mark.parametrize(
    ("value", "taken"), [(0, True), (2**63 - 1, True), (-1, False), (2**63, False), (10**300, False)]
)
def test_an_integer_lies_between_its_bounds(value, taken):
    if taken:
        assert integer({"depth": value}, "depth", 0) == value
    else:
        reason, detail = refused(integer, {"depth": value}, "depth", 0)
        assert reason is Reason.OUT_OF_RANGE and len(detail) < 200


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_integer_is_none(value):
    assert refused(integer, {"depth": value}, "depth", 0)[0] is Reason.WRONG_TYPE


def test_a_flag_is_true_false_or_not_said():
    assert [boolean(value, "outlier") for value in (True, False, None)] == [True, False, False]
    for value in (0, 1, "true", []):
        assert refused(boolean, value, "outlier")[0] is Reason.WRONG_TYPE


@pytest.mark.parametrize(("version", "form"), [("2", lambda one: [one, {"sha256": "x"}]), ("10", lambda one: one)])
def test_references_are_each_taken_once_in_their_order(version, form):
    event = {"prev_events": [form(one) for one in ("$b", "$a", "$b")]}
    assert references(event, "prev_events", room_version(version), "$own") == ("$b", "$a")


@pytest.mark.parametrize(
    ("version", "entry", "reason"),
    [("10", "$own", Reason.BAD_REFERENCE), ("10", "event", Reason.BAD_REFERENCE), ("10", ["$a", {}], Reason.WRONG_TYPE),
     ("10", "$" + "x" * 255, Reason.IDENTIFIER_TOO_LONG), ("10", "$\0", Reason.NUL_CHARACTER),
     ("2", "$a", Reason.BAD_REFERENCE), ("2", ["$a"], Reason.BAD_REFERENCE), ("2", ["$own", {}], Reason.BAD_REFERENCE),
     ("2", [5, {}], Reason.WRONG_TYPE)],
)  # fmt: skip
def test_what_is_no_reference_is_refused(version, entry, reason):
    assert refused(references, {"auth_events": [entry]}, "auth_events", room_version(version), "$own")[0] is reason


def test_a_value_is_shown_in_a_few_words_however_deep_or_long_it_is():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert (shown(deep), shown({"a": deep}), shown(None), shown(5)) == ("an array", "an object", "None", "5")
    assert len(shown("x" * 10_000)) == 101
    while deep:  # else Python takes it apart by recursion
        deep = deep.pop()
