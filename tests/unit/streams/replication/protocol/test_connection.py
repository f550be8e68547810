"""The protocol object: rules of receiving, keep-alive, closing, illegal moves. The clock is moved by hand."""

import pytest

from streams.replication.errors import IllegalMove, UnsendableCommand
from streams.replication.protocol.commands import Error, Name, Ping, RData, Replicate, Server
from streams.replication.protocol.connection import ClientConnection, CloseReason, Limits, ServerConnection, State


def server(**limits) -> ServerConnection:
    """An open server side whose greeting is sent already."""
    connection = ServerConnection("example.org", Limits(**limits))
    connection.connected(0.0)
    connection.pop_output()
    return connection


def client(name=None) -> ClientConnection:
    connection = ClientConnection("f1", name)
    connection.connected(0.0)
    connection.pop_output()
    return connection


# --- receiving ----------------------------------------------------------------------------------------------------


def test_lines_may_come_in_any_pieces():
    connection = server()
    assert connection.receive(b"NA", 1.0) == []
    assert connection.receive(b"ME w1\nREPLI", 1.0) == [Name("w1")]
    assert connection.receive(b"CATE\n", 1.0) == [Replicate()]


@pytest.mark.parametrize("blank", [b"\n", b"   \n", b"\r\n", b"\t\n"])
def test_blank_lines_are_ignored(blank):
    connection = server()
    assert connection.receive(blank + b"PING 1\n", 1.0) == [Ping("1")]
    assert connection.is_open


@pytest.mark.parametrize("data", [b"x" * 16_385, b"PING " + b"x" * 16_380 + b"\n"])
def test_a_line_over_the_limit_ends_the_connection(data):
    connection = server()
    assert connection.receive(data, 1.0) == []
    assert connection.pop_output() == b"ERROR Line length exceeded\n"
    assert connection.close_reason is CloseReason.LINE_TOO_LONG


def test_a_line_of_exactly_the_limit_passes():
    assert server().receive(b"PING " + b"x" * 16_379 + b"\n", 1.0) == [Ping("x" * 16_379)]


def test_a_long_line_comes_after_the_good_ones_before_it():
    assert server().receive(b"PING 1\n" + b"x" * 20_000, 1.0) == [Ping("1")]


def test_invalid_utf8_closes_without_a_word():
    connection = server()
    connection.receive(b"NAME \xff\xfe\n", 1.0)
    assert connection.pop_output() == b""
    assert connection.close_reason is CloseReason.INVALID_UTF8


def test_nul_is_data():
    assert server().receive(b"NAME a\x00b\n", 1.0) == [Name("a\x00b")]


def test_a_bad_line_is_shown_with_the_reason():
    connection = server()
    connection.receive(b"BOGUS some data\n", 1.0)
    assert connection.pop_output() == b"ERROR failed to parse line: unknown command 'BOGUS' ('BOGUS some data')\n"


def test_percent_signs_are_harmless():
    connection = server()
    connection.receive(b"BOGUS %s %d %(x)s %\n", 1.0)
    assert b"'BOGUS %s %d %(x)s %'" in connection.pop_output()


def test_a_long_bad_line_is_cut_and_stays_one_ascii_line():
    connection = server()
    connection.receive("\u2603".encode() * 5_000 + b"\n", 1.0)
    output = connection.pop_output()
    assert output.isascii()
    assert output.count(b"\n") == 1
    assert len(output) < 2_000


def test_http_is_guessed():
    connection = server()
    connection.receive(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 1.0)
    assert b"is this the replication port?" in connection.pop_output()
    assert connection.close_reason is CloseReason.SPOKE_HTTP


@pytest.mark.parametrize("pieces", [[b"\x16\x03\x01\x02\n\x00"], [b"\x16", b"\x03\x01"]])
def test_tls_is_noticed_at_its_first_bytes(pieces):
    """Most of a handshake holds no line feed: the client would wait for an answer until somebody's time-out."""
    connection = server()
    for piece in pieces:
        connection.receive(piece, 1.0)
    assert connection.close_reason is CloseReason.SPOKE_TLS
    assert b"ERROR this port does not speak TLS" in connection.pop_output()


def test_later_bytes_may_look_like_tls():
    connection = server()
    connection.receive(b"PING 1\n\x16\x03\x01", 1.0)
    assert connection.state is State.OPEN


def test_parsing_comes_before_the_question_who_may_send():
    connection = server()
    connection.receive(b"RDATA events master 5 not-json\n", 1.0)
    assert connection.close_reason is CloseReason.PARSE_ERROR


@pytest.mark.parametrize(("connection", "line"), [(server(), b"RDATA e m 5 []\n"), (client(), b"NAME x\n")])
def test_commands_of_the_wrong_side_are_refused_by_name(connection, line):
    connection.receive(line, 1.0)
    assert connection.pop_output() == b"ERROR invalid command: %s\n" % line.split()[0]
    assert connection.close_reason is CloseReason.INVALID_COMMAND


def test_everything_after_the_bad_line_is_dropped():
    connection = server()
    assert connection.receive(b"PING 1\nBOGUS\nREPLICATE\n", 1.0) == [Ping("1")]
    assert connection.receive(b"REPLICATE\n", 1.0) == []


def test_an_error_of_the_peer_does_not_close():
    connection = server()
    assert connection.receive(b"ERROR oh\n", 1.0) == [Error("oh")]
    assert connection.is_open
    assert connection.pop_output() == b""


# --- keep-alive ---------------------------------------------------------------------------------------------------


def test_ping_is_due_when_nothing_was_sent_for_the_interval():
    connection = server()
    assert connection.deadline == 5.0
    connection.tick(5.0)
    assert connection.pop_output() == b"PING 5000\n"
    assert connection.deadline == 10.0


def test_anything_sent_puts_ping_off():
    connection = server()
    connection.count_sent(100, 3, 4.0)
    connection.tick(5.0)
    assert connection.pop_output() == b""
    assert connection.deadline == 9.0


def test_ping_carries_milliseconds_since_the_epoch():
    connection = ServerConnection("a", epoch_offset_seconds=1_795_226_000.0)
    connection.connected(0.5)
    assert connection.pop_output() == b"SERVER a\nPING 1795226000500\n"


def test_a_peer_that_never_pings_is_never_given_up():
    connection = server()
    connection.receive(b"NAME quiet\n", 1.0)
    for now in range(5, 300, 5):
        connection.tick(float(now))
    assert connection.is_open


def test_a_peer_that_pinged_is_given_up_after_the_timeout():
    connection = server(ping_interval_seconds=100.0)
    connection.receive(b"PING 1\n", 2.0)
    assert connection.deadline == 17.0
    connection.tick(17.0)
    assert connection.pop_output() == b"ERROR ping timeout\n"
    assert connection.close_reason is CloseReason.PING_TIMEOUT


def test_any_valid_command_is_a_sign_of_life_and_half_a_line_is_none():
    connection = server(ping_interval_seconds=100.0)
    connection.receive(b"PING 1\n", 2.0)
    connection.receive(b"NAME x\n", 10.0)
    connection.receive(b"\nPIN", 12.0)
    assert connection.deadline == 25.0


def test_a_peer_that_could_not_be_heard_is_not_given_up():
    connection = client()
    connection.receive(b"PING 1\n", 2.0)
    connection.tick(20.0, reading=False)
    connection.tick(21.0)
    assert connection.is_open


# --- sides --------------------------------------------------------------------------------------------------------


def test_client_greets_without_waiting():
    connection = ClientConnection("f1")
    connection.connected(1.0)
    assert connection.pop_output() == b"NAME f1\nPING 1000\nREPLICATE \n"


def test_client_refuses_another_server():
    connection = client("example.org")
    assert connection.receive(b"SERVER other.org\nPING 1\n", 1.0) == [Server("other.org")]
    assert connection.pop_output() == b"ERROR Wrong remote\n"
    assert connection.close_reason is CloseReason.WRONG_REMOTE


def test_client_takes_its_server():
    connection = client("example.org")
    connection.receive(b"SERVER example.org\nRDATA s w 5 []\n", 1.0)
    assert connection.is_open


def test_client_takes_any_server_when_it_has_no_wish():
    connection = client()
    assert connection.receive(b"SERVER x\nRDATA s w batch [1]\n", 1.0)[1] == RData("s", "w", None, [1])


# --- the end ------------------------------------------------------------------------------------------------------


def test_the_first_reason_stands():
    connection = server()
    connection.close(CloseReason.STOPPING, 1.0, "server stopping")
    connection.close(CloseReason.TOO_SLOW, 2.0, "Failed to keep up")
    connection.lost()
    assert connection.pop_output() == b""
    assert connection.close_reason is CloseReason.STOPPING


def test_a_lost_peer_is_counted_as_such():
    connection = server()
    connection.lost()
    assert (connection.state, connection.close_reason) == (State.CLOSED, CloseReason.PEER_CLOSED)


def test_closing_has_a_deadline_for_the_abort():
    connection = server()
    connection.close(CloseReason.STOPPING, 10.0)
    assert connection.deadline == 35.0


@pytest.mark.parametrize("move", ["connected", "send", "receive", "tick", "close"])
def test_moves_that_a_closed_connection_does_not_allow(move):
    connection = server()
    connection.lost()
    arguments = {"connected": (1.0,), "send": (Ping(""), 1.0), "receive": (b"", 1.0), "tick": (1.0,)}
    with pytest.raises(IllegalMove, match=rf"{move}.*closed"):
        getattr(connection, move)(*arguments.get(move, (CloseReason.STOPPING, 1.0)))


def test_sending_before_the_connection_is_there_is_a_mistake():
    with pytest.raises(IllegalMove, match=r"send.*new"):
        ServerConnection("a").send(Ping(""), 0.0)


def test_what_cannot_be_sent_leaves_no_trace():
    connection = server()
    with pytest.raises(UnsendableCommand):
        connection.send(Error("two\nlines"), 1.0)
    assert connection.pop_output() == b""


def test_figures_count_lines_and_bytes_of_both_directions():
    connection = ServerConnection("a")
    connection.connected(0.0)
    connection.receive(b"NAME x\n\nPING", 1.0)
    assert (connection.bytes_in, connection.lines_in) == (12, 2)
    assert (connection.bytes_out, connection.lines_out) == (len(b"SERVER a\nPING 0\n"), 2)
