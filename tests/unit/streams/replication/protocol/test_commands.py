"""Commands: fields, integers, JSON rows, and what cannot be sent."""

import pytest

from streams.replication.errors import MalformedCommand, UnknownCommand, UnsendableCommand
from streams.replication.protocol.commands import (
    COMMANDS,
    CancelTask,
    ClearUserSync,
    Error,
    FederationAck,
    LockReleased,
    Name,
    NewActiveTask,
    Ping,
    Position,
    RData,
    RemoteServerUp,
    Replicate,
    Server,
    Side,
    UserIP,
    UserSync,
    format_line,
    overlong,
    parse_line,
)

EXAMPLES = [
    (Server("example.org"), b"SERVER example.org\n"),
    (RData("caches", "master", 7, ["a", None]), b'RDATA caches master 7 ["a",null]\n'),
    (RData("events", "w1", None, ["ev", [1]]), b'RDATA events w1 batch ["ev",[1]]\n'),
    (Position("events", "master", 281, 282), b"POSITION events master 281 282\n"),
    (Error("something went wrong"), b"ERROR something went wrong\n"),
    (Ping("1795226301268"), b"PING 1795226301268\n"),
    (RemoteServerUp("two words"), b"REMOTE_SERVER_UP two words\n"),
    (Name("worker1"), b"NAME worker1\n"),
    (Replicate(), b"REPLICATE \n"),
    (UserSync("zHeCu", "@i:a", True, 12), b"USER_SYNC zHeCu @i:a start 12\n"),
    (UserSync("zHeCu", "@i:a", False, 12), b"USER_SYNC zHeCu @i:a end 12\n"),
    (UserSync("rnbrH", "@c:n", True, 5, "CDEV"), b"USER_SYNC rnbrH @c:n CDEV start 5\n"),
    (UserSync("rnbrH", "@c:n", False, 5, "start"), b"USER_SYNC rnbrH @c:n start end 5\n"),
    (UserSync("rnbrH", "@c:n", True, 5, "None"), b"USER_SYNC rnbrH @c:n None start 5\n"),
    (ClearUserSync("zHeCu"), b"CLEAR_USER_SYNC zHeCu\n"),
    (LockReleased("p1", "purge lock", "!C-c"), b'LOCK_RELEASED ["p1","purge lock","!C-c"]\n'),
    (NewActiveTask("KVXhNHqd"), b"NEW_ACTIVE_TASK KVXhNHqd\n"),
    (CancelTask("KVXhNHqd"), b"CANCEL_TASK KVXhNHqd\n"),
    (FederationAck("sender1", 0), b"FEDERATION_ACK sender1 0\n"),
    (UserIP("@c:a", "t", "::1", "ua 1.0", None, 5), b'USER_IP @c:a ["t","::1","ua 1.0",null,5]\n'),
]


@pytest.mark.parametrize(("command", "line"), EXAMPLES)
def test_command_is_written_as_its_line(command, line):
    assert format_line(command) == line


@pytest.mark.parametrize(("command", "line"), EXAMPLES)
def test_line_is_read_as_its_command(command, line):
    assert parse_line(line[:-1].decode()) == command


def test_every_command_has_an_example():
    assert {type(command) for command, _ in EXAMPLES} == {grammar.kind for grammar in COMMANDS.values()}


@pytest.mark.parametrize(
    ("word", "server", "client"),
    [("RDATA", True, False), ("NAME", False, True), ("PING", True, True), ("REMOTE_SERVER_UP", True, True)],
)
def test_table_says_who_may_send(word, server, client):
    senders = COMMANDS[word].senders
    assert (Side.SERVER in senders, Side.CLIENT in senders) == (server, client)


@pytest.mark.parametrize("line", ["", "BOGUS x", " PING 1", "ping 1", "PING\t1", "REPLICATE\r"])
def test_other_first_words_are_unknown(line):
    with pytest.raises(UnknownCommand):
        parse_line(line)


@pytest.mark.parametrize("line", ["REPLICATE", "REPLICATE ", "REPLICATE events NOW", "REPLICATE \r"])
def test_arguments_of_replicate_do_not_matter(line):
    assert parse_line(line) == Replicate()


@pytest.mark.parametrize("line", ["REPLICATE events,caches", "REPLICATE caches,events,caches, \r"])
def test_replicate_may_name_streams(line):
    assert parse_line(line) == Replicate(("caches", "events"))
    assert format_line(parse_line(line)) == b"REPLICATE caches,events\n"


@pytest.mark.parametrize(
    ("text", "number"),
    [("+5", 5), ("1_000", 1000), ("-3", -3), ("007", 7), ("\u0664\u0662", 42), ("9" * 18, int("9" * 18))],
)
def test_integers_follow_python(text, number):
    assert parse_line(f"POSITION s w {text} {number}") == Position("s", "w", number, number)


def test_last_integer_may_have_blanks_around():
    assert parse_line("POSITION s w 1  2 ") == Position("s", "w", 1, 2)


@pytest.mark.parametrize(
    "line",
    [
        "POSITION s w 1",
        "POSITION s w 1 x",
        "POSITION s w 1 2 3",
        "POSITION s w 1__0 2",
        "POSITION s w 1 " + "9" * 5000,
        "RDATA s w 5",
        "RDATA s w x []",
        "RDATA s w BATCH []",
        "RDATA events master 5 not-json",
        "RDATA s w 5 [NaN]",
        "RDATA s w 5 [1e999]",
        "RDATA s w 5 " + "[" * 10_000,
        "RDATA s w 9223372036854775808 []",
        "POSITION s w 1 9223372036854775808",
        "POSITION s w -9223372036854775809 1",
        "USER_SYNC inst @a:b middle 12",
        "USER_SYNC inst @a:b start",
        "USER_SYNC inst @a:b DEV middle 5",
        "USER_SYNC inst @a:b start five",
        "USER_SYNC inst @a:b start start five",
        'LOCK_RELEASED ["a","b"]',
        'LOCK_RELEASED ["a","b",1]',
        "LOCK_RELEASED a b c",
        "FEDERATION_ACK a 9223372036854775808",
        "FEDERATION_ACK 3",
        "FEDERATION_ACK a b 3",
        'USER_IP @a:b ["t","ip","ua",null]',
        'USER_IP @a:b "abcde"',
        'USER_IP @a:b ["t","ip","ua",null,"5"]',
        'USER_IP @a:b ["t","ip","ua",{},5]',
        f"POSITION events {'x' * 256} 1 2",
        f"POSITION {'x' * 256} master 1 2",
        "POSITION events a\0 1 2",
        f"RDATA events {'x' * 256} 1 []",
        "RDATA a\0 master batch []",
    ],
)
def test_bad_arguments_are_named(line):
    with pytest.raises(MalformedCommand):
        parse_line(line)


def test_row_may_hold_blanks():
    assert parse_line('RDATA s w 5 ["a b", 1]').row == ["a b", 1]


def test_two_blanks_are_an_empty_field():
    assert parse_line("RDATA s  5 []") == RData("s", "", 5, [])


@pytest.mark.parametrize(
    "command",
    [
        Name("two\nlines"),
        Name("\ud800"),
        Name("x" * 16_380),
        RData("two words", "w", 1, []),
        RData("s", "w", 1, [float("nan")]),
        RData("s", "w", 1, [object()]),
        Position("s", "two words", 1, 2),
    ],
)
def test_what_no_line_can_carry_is_refused(command):
    with pytest.raises(UnsendableCommand):
        format_line(command)


def test_a_line_of_exactly_the_limit_is_sent():
    assert len(format_line(Name("x" * 16_379))) == 16_385


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (RemoteServerUp, 255),
        (NewActiveTask, 255),
        (CancelTask, 255),
        (lambda text: LockReleased(text, "lock", "key"), 255),
        (lambda text: LockReleased("w", text, "key"), 255),
        (lambda text: LockReleased("w", "lock", text), 1_024),
    ],
)
def test_what_goes_to_all_clients_has_a_length_and_is_read_at_any_length(make, most):
    """A line that is too long is read all the same: who sends it may have it from a user."""
    assert format_line(make("\u00e4" * most))
    too_long = make("a" * (most + 1))
    assert parse_line(f"{too_long.WORD} {text_of(too_long)}") == too_long
    assert f"more than {most} characters" in overlong(too_long)
    with pytest.raises(UnsendableCommand, match=f"more than {most} characters"):
        format_line(too_long)


def text_of(command) -> str:
    return COMMANDS[command.WORD].write(command).decode()


@pytest.mark.parametrize("name", ["\0", "w" * 256])
@pytest.mark.parametrize("make", [lambda name: RData(name, "w", 1, []), lambda name: Position("s", name, 1, 2)])
def test_a_name_that_would_be_refused_is_not_sent(name, make):
    with pytest.raises(UnsendableCommand, match="NUL or more than 255"):
        format_line(make(name))
