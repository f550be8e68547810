"""What ``script/test`` had from npm: the tests of the protocol Durable Streams, and its published client."""

from __future__ import annotations

import shutil

import pytest

from tests.support.session import PROJECT

__all__ = ["CLIENT", "NODE_MODULES", "needs_npm"]

NODE_MODULES = PROJECT / ".tools" / "npm" / "node_modules"
#: One file, a module for browsers.
CLIENT = NODE_MODULES / "@durable-streams" / "client" / "dist" / "index.js"
needs_npm = pytest.mark.skipif(
    shutil.which("node") is None or not CLIENT.exists(),
    reason="no npm here: install Node.js 20 or later with npm, then script/test",
)
