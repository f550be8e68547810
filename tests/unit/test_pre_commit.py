"""The hooks before a commit are checks of CI, by the same commands."""

from __future__ import annotations

import re

import yaml

from tests.support.session import PROJECT


def test_each_hook_is_a_check_of_ci():
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    of_ci = dict(re.findall(r'^check "([^"]+)" (.+)$', (PROJECT / ".ci" / "run").read_text(), re.MULTILINE))
    assert hooks
    for hook in hooks:
        assert hook["entry"].removeprefix(".venv/bin/") == of_ci[hook["name"]]


def test_every_quick_check_of_ci_is_a_hook():
    """Those that start Django, a database or tests are for CI and for the hand."""
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    of_ci = re.findall(r'^check "([^"]+)" (.+)$', (PROJECT / ".ci" / "run").read_text(), re.MULTILINE)
    slow = ("manage ", "tests ", "on_driver ")
    assert [name for name, command in of_ci if not command.startswith(slow)] == [hook["name"] for hook in hooks]
