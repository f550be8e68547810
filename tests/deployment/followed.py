"""What a follower in a process of its own prints."""

from __future__ import annotations

import json
import subprocess
import threading


class Followed:
    """What ``manage.py follow --json`` prints: the tokens in the order of arrival, over all writers and for each one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.tokens: list[int] = []
        self.of_writers: dict[str, list[int]] = {}
        self._thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._thread.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            fact = json.loads(line)
            self.of_writers.setdefault(fact["instance"], []).append(fact["token"])
            self.tokens.append(fact["token"])
