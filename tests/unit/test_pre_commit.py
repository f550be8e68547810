"""The hooks before a commit are checks of CI, by the same commands."""

from __future__ import annotations

import re

import yaml

from tests.support.session import PROJECT


def test_the_hooks_are_the_quick_checks_of_ci():
    """Those that start Django, a database or tests are for CI and for the hand."""
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    static = (PROJECT / ".ci" / "run").read_text().partition("static_checks() {")[2].partition("\n}")[0]
    of_ci = re.findall(r'^  check "([^"]+)" (.+)$', static, re.MULTILINE)
    quick = [(name, does) for name, does in of_ci if not does.startswith(("manage ", "collected"))]
    assert quick == [(hook["name"], hook["entry"].removeprefix(".venv/bin/")) for hook in hooks] != []
