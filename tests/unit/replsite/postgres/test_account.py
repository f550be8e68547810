"""The command lines by which root leaves its rights behind."""

from __future__ import annotations

from replsite.postgres.account import Account, choose_account


def test_an_ordinary_user_runs_the_programs_as_is(monkeypatch, tmp_path):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert choose_account(tmp_path, tmp_path).command("postgres", "-D", tmp_path) == [
        "postgres",
        "-D",
        str(tmp_path),
    ]


def test_root_changes_account_and_groups():
    assert Account(101, 104).command("initdb") == [
        "setpriv",
        "--reuid=101",
        "--regid=104",
        "--clear-groups",
        "--",
        "initdb",
    ]


def test_a_capability_is_given_alone_and_seen_by_access():
    words = Account(101, 104, "dac_read_search").command("initdb")
    assert "--ambient-caps=+dac_read_search" in words
    assert "--securebits=+no_setuid_fixup" in words
