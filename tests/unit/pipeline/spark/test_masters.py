"""Spark masters: what may be named, whether it answers, and the address that executors call back."""

from __future__ import annotations

import socket

import pytest

from pipeline.errors import MasterAway
from pipeline.spark.masters import addresses_of, check_master, check_master_answers, driver_address, is_local, retrying
from streams.jobs.errors import UnusableArguments


@pytest.mark.parametrize(
    "master",
    [
        "local", "local[2]", "local[*]", "local[2,3]", "spark://10.0.0.1:7077", "spark://a-b.example.org:7077,c:7078",
        "spark://[::1]:7077", "yarn", "k8s://https://10.0.0.1:6443",
    ],
)  # fmt: skip
def test_what_spark_knows_is_a_master(master):
    assert check_master(master) == master


@pytest.mark.parametrize(
    "master",
    [
        "", "locale", "local[0]", "local[x]", "spark://", "spark://host", "spark://host:70777", "spark://host:0",
        "spark://a:1,b", "sc://host:15002", "mesos://host:5050", "k8s://", "local[2] ", "10.0.0.1:7077",
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_what_to_write(master):
    with pytest.raises(UnusableArguments, match="spark://HOST:PORT"):
        check_master(master)


def test_a_standalone_cluster_may_have_several_masters():
    assert addresses_of("spark://a:7077,[::1]:7078") == [("a", 7077), ("::1", 7078)]
    assert addresses_of("yarn") == addresses_of("local[2]") == []


def test_only_local_ones_are_local():
    assert is_local("local[2]") and is_local("local")
    assert not is_local("spark://local:7077")


@pytest.fixture
def listening():
    """A port of this machine that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed(listening):
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


def test_one_master_that_answers_is_enough(listening, closed):
    check_master_answers(f"spark://127.0.0.1:{closed},127.0.0.1:{listening}")


def test_a_master_that_is_away_is_told_with_the_way_out(closed):
    with pytest.raises(MasterAway, match=rf"127\.0\.0\.1:{closed}.*leave --master out"):
        check_master_answers(f"spark://127.0.0.1:{closed}")


def test_others_find_their_master_themselves():
    check_master_answers("local[2]")
    check_master_answers("yarn")


def test_the_driver_of_a_cluster_on_this_machine_stays_on_loopback(closed):
    assert driver_address("local[2]") == "127.0.0.1"
    assert driver_address(f"spark://127.0.0.1:{closed}") == "127.0.0.1"


def test_the_driver_is_where_the_cluster_sees_it(monkeypatch):
    class Socket:
        def __init__(self, *_):
            self.where = None

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def connect(self, where):
            assert where == ("192.0.2.7", 7077)

        def getsockname(self):
            return ("192.0.2.1", 50000)

    monkeypatch.setattr("pipeline.spark.masters.socket.socket", Socket)
    assert driver_address("spark://192.0.2.7:7077") == "192.0.2.1"


def test_an_unknown_name_leaves_the_address_to_spark():
    assert driver_address("spark://no-such-host.invalid:7077") is None
    assert driver_address("yarn") is None


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("local", "local[1,4]"), ("local[2]", "local[2,4]"), ("local[*]", "local[*,4]"), ("local[2,1]", "local[2,1]"),
        ("spark://h:7077", "spark://h:7077"), ("yarn", "yarn"),
    ],
)  # fmt: skip
def test_local_masters_try_a_task_again_as_clusters_do(given, taken):
    assert retrying(given) == taken and check_master(taken)
