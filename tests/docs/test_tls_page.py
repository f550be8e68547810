"""The how-to about TLS, run: its certificates let a follower in."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import DEADLINE_SECONDS
from tests.support.wire_client import ready_ports
from tests.support.writing import append

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "tls.md"


def test_the_page_works_as_it_stands(tmp_path, start_manage, run_manage):
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    done = subprocess.run(
        ["sh", "-ec", blocks[0]],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    strictly = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", "server.crt", "worker1.crt"]
    assert subprocess.run(strictly, cwd=tmp_path, check=False, capture_output=True, text=True).returncode == 0
    serve = place(blocks[1], tmp_path)
    serve[serve.index("--replication") + 1] = "127.0.0.1:0"
    port = ready_ports(start_manage(*serve, "--http", "127.0.0.1:0"))["replication"]
    ids = append(3)
    follow = place(blocks[2], tmp_path)
    follow[1] = f"tls://localhost:{port}"
    followed = run_manage(*follow, "--from", "caches=1", "--until", f"caches={ids[-1]}", "--timeout", "40")
    assert followed.returncode == 0, followed.stderr
    assert len(followed.stdout.splitlines()) == 3


def place(block: str, folder: Path) -> list[str]:
    """The arguments of a command of the page, with its files where they are."""
    _, *arguments = block.split()
    return [str(folder / word) if word.endswith((".crt", ".key", ".pem")) else word for word in arguments]
