"""Epochs without a database: what shows a restore, and tokens that carry their epoch."""

from __future__ import annotations

import pytest

from streams.epochs import Identity, stamp, unstamp, why_new
from streams.errors import TokenError

HERE = Identity("7001", 5, 16_400, 1)


@pytest.mark.parametrize(
    ("now", "word"),
    [
        (Identity("7002", 5, 16_400, 1), "another cluster"),
        (Identity("7001", 6, 16_400, 1), "same cluster"),
        (Identity("7001", 5, 16_999, 1), "same cluster"),
        (Identity("7001", 5, 16_400, 2), "timeline 1 -> 2"),
    ],
)
def test_every_kind_of_restore_is_named(now, word):
    assert word in why_new(HERE, now, failover_keeps=False)


def test_same_place_is_the_same_life():
    assert why_new(HERE, HERE, failover_keeps=False) is None


def test_promotion_of_a_synchronous_standby_keeps_the_epoch():
    promoted = Identity("7001", 5, 16_400, 2)
    assert why_new(HERE, promoted, failover_keeps=True) is None
    assert why_new(HERE, Identity("7002", 5, 16_400, 2), failover_keeps=True)


def test_standby_begins_no_epoch():
    assert why_new(HERE, Identity("7002", 9, 9, None), failover_keeps=False) is None


@pytest.mark.parametrize("token", ["12", "m5~1.7", "s4", "t3--7"])
def test_stamped_token_comes_back(token):
    assert unstamp(stamp(token, "k3x")) == (token, "k3x")
    assert unstamp(token) == (token, "")
    assert stamp(token, "") == token


@pytest.mark.parametrize("text", ["5@", "5@a b", "5@a@b", "5@" + "x" * 41, "5@é"])
def test_odd_stamps_are_refused(text):
    with pytest.raises(TokenError, match="epoch"):
        unstamp(text)
