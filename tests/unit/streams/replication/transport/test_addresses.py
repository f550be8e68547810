"""Addresses as text, binding, and where plain text may be spoken."""

import os
import socket

import pytest

from streams.replication.errors import BadAddress, PortTaken
from streams.replication.transport.addresses import (
    Address,
    RedisAddress,
    SocketFile,
    bind,
    bind_file,
    parse_redis,
    refuse_open_network,
    refuse_strangers,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:80", Address("::1", 80)),
    ],
)
def test_address_is_read_and_written(text, address):
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9092",
        "host",
        "host:",
        "host:x",
        "host:70000",
        ":80",
        "a:1/path",
        "u@h:1",
        "::1:80",
        "a..b:1",
        "x" * 64 + ":1",
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(BadAddress):
        Address.parse(text)


def test_a_scheme_is_wanted_where_one_is_named():
    assert Address.parse("tcp://127.0.0.1:9092", scheme="tcp") == Address("127.0.0.1", 9092)
    with pytest.raises(BadAddress, match="tcp://HOST:PORT"):
        Address.parse("http://127.0.0.1:9092", scheme="tcp")


def test_port_zero_takes_a_free_one():
    bound, address = bind(Address("127.0.0.1", 0))
    with bound:
        assert address.port == bound.getsockname()[1] > 0


def test_a_taken_port_is_refused_with_its_holder():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"{port}: the port is in use by process {os.getpid()} "):
            bind(Address("127.0.0.1", port))


def test_an_address_of_nobody_here_is_refused():
    with pytest.raises(BadAddress, match="Cannot listen"):
        bind(Address("192.0.2.1", 0))


@pytest.mark.parametrize("use", [bind, lambda address: refuse_open_network(address, [])])
def test_a_name_of_nobody_is_refused(use):
    with pytest.raises(BadAddress, match=r"Cannot listen on nobody\.invalid:0"):
        use(Address("nobody.invalid", 0))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_pages_for_other_machines_are_refused_with_the_two_ways_out(host):
    with pytest.raises(BadAddress, match=r"--http 127\.0\.0\.1:8000 or unix:.*; or give --behind-proxy"):
        refuse_strangers(Address(host, 80))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_pages_for_this_machine_are_served(host):
    refuse_strangers(Address(host, 80))


def test_a_socket_of_the_machine_is_read_and_written():
    assert SocketFile.parse("unix:/run/x.sock") == SocketFile("/run/x.sock")
    assert str(SocketFile.parse("unix:/run/x.sock")) == "unix:/run/x.sock"
    assert SocketFile.parse("[::1]:80") == Address("::1", 80)
    with pytest.raises(BadAddress, match="no socket"):
        SocketFile.parse("unix:x.sock")


def test_a_socket_that_nobody_listens_on_is_replaced_and_another_one_is_not(tmp_path):
    file = SocketFile(str(tmp_path / "x.sock"))
    bind_file(file).close()
    with bind_file(file), socket.socket(socket.AF_UNIX) as client:
        client.connect(file.path)
        with pytest.raises(PortTaken, match="another process"):
            bind_file(file)


def test_a_file_that_is_no_socket_stays(tmp_path):
    (tmp_path / "x.sock").write_text("mine")
    for path in (tmp_path / "x.sock", tmp_path / "nothing" / "x.sock"):
        with pytest.raises(BadAddress, match="Cannot listen on unix:"):
            bind_file(SocketFile(str(path)))
    assert (tmp_path / "x.sock").read_text() == "mine"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_is_always_allowed(host):
    refuse_open_network(Address(host, 9092), [])


@pytest.mark.parametrize(("host", "networks"), [("0.0.0.0", []), ("::", []), ("10.1.2.3", ["10.9.0.0/16"])])
def test_other_networks_need_a_setting(host, networks):
    with pytest.raises(BadAddress, match="REPLSITE_PLAIN_NETWORKS"):
        refuse_open_network(Address(host, 9092), networks)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_addresses_may_be_used_where_clients_are_refused_by_their_network(host):
    refuse_open_network(Address(host, 9092), ["10.9.0.0/16"])


def test_a_setting_that_names_no_network_is_refused():
    with pytest.raises(BadAddress, match=r"10\.1\.2\.3/24"):
        refuse_open_network(Address("127.0.0.1", 9092), ["10.1.2.3/24"])


def test_a_named_network_is_allowed():
    refuse_open_network(Address("10.1.2.3", 9092), ["10.1.0.0/16"])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("redis://h", RedisAddress("h", 6379)),
        ("redis://h:1/3?channel=new.example", RedisAddress("h", 1, 3, "new.example")),
        ("rediss://u:p%40ss@[::1]:7", RedisAddress("::1", 7, user="u", password="p@ss", is_tls=True)),
    ],
)
def test_a_redis_address_is_read(text, address):
    assert RedisAddress.parse(text) == address
    assert "p@ss" not in f"{address} {address!r}"


@pytest.mark.parametrize(
    "text",
    [
        "redis://",
        "redis://h:x",
        "redis://h/x",
        "redis://h/-1",
        "tcp://h",
        "redis://h?db=1",
        "redis://h?channel=a&channel=b",
    ],
)
def test_what_is_no_redis_address(text):
    with pytest.raises(BadAddress, match="redis://"):
        RedisAddress.parse(text)


def test_a_password_in_an_address_that_cannot_be_is_not_told():
    with pytest.raises(BadAddress) as error:
        RedisAddress.parse("redis://u:s3cret@h:notaport")
    assert "s3cret" not in str(error.value)


def test_the_password_of_redis_comes_from_the_settings_where_the_address_has_none(settings, tmp_path):
    """A command line can be read by every user of the machine."""
    file = tmp_path / "redis"
    file.write_text("from a file\n")
    settings.REPLSITE_REDIS_PASSWORD, settings.REPLSITE_REDIS_PASSWORD_FILE = "", str(file)
    assert parse_redis("redis://h:1").password == "from a file"
    settings.REPLSITE_REDIS_PASSWORD = "given"
    assert parse_redis("redis://h:1").password == "given"
    assert parse_redis("redis://u:its%20own@h:1").password == "its own"
    assert "given" not in repr(parse_redis("redis://h:1")) + str(parse_redis("redis://h:1"))
    settings.REPLSITE_REDIS_PASSWORD, settings.REPLSITE_REDIS_PASSWORD_FILE = "", str(tmp_path / "nothing")
    with pytest.raises(BadAddress, match="REPLSITE_REDIS_PASSWORD_FILE cannot be read"):
        parse_redis("redis://h:1")


def test_errors_about_addresses_have_no_passwords():
    with pytest.raises(BadAddress) as error:
        Address.parse("tcp://user:Wonder5-land@h:9092", scheme="tcp")
    assert "Wonder5" not in str(error.value)
