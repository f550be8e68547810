"""Runs the tests, and a test that failed once more, alone: ``python -m tests.support.again [pytest arguments]``.

Tests with processes of their own run beside others on few cores, so one may fail for no reason of its own. Such a test runs
again in a new session with a new server and nothing beside it, and the verdict names it with the text of its first failure:

    FLAKY (failed beside others, passed alone): tests/integration/test_x.py::test_y

It is a defect of the test, to be mended. What could hide a defect of the program is never run again: a test without processes,
one whose verdict is on data (``no_rerun``: a fact that is missing or came twice, a room that differs), more than five failures.

``tests/flaky.toml`` lists tests that are known to do so, with cause and date. An entry ends after 14 days; there are ten at most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ProcessStarts", "check_ledger", "may_run_again", "write_verdict"]

#: The file that a run writes its failures to, for this program.
VERDICT_VARIABLE = "REPLSITE_TEST_VERDICT"
LEDGER = Path(__file__).parents[1] / "flaky.toml"
MOST_AGAIN, MOST_KNOWN = 5, 10
KNOWN_FOR = timedelta(days=14)
PURE = frozenset({"unit", "properties", "oracle", "protocol"})
#: A lost, doubled or reordered fact looks just like a test that races.
VERDICTS_ON_DATA = frozenset(
    f"tests/{name}.py"
    for name in (
        "acceptance/test_several_processes", "deployment/test_failover", "deployment/test_two_versions",
        "integration/events/test_sync_two_writers", "integration/pipeline/test_jobs_killed_anywhere",
        "integration/replsite/test_clock_skew", "integration/replsite/test_one_data_folder",
        "integration/replsite/test_server_restart", "integration/streams/test_appends",
        "integration/streams/test_broadcaster_order", "integration/streams/test_follow_record",
        "integration/streams/test_follow_redis", "integration/streams/test_server_killed",
        "integration/streams/test_forged_notifications", "integration/streams/test_handlers_killed",
        "integration/streams/test_every_append_is_held", "integration/streams/test_looked_positions",
        "integration/streams/test_looker", "integration/streams/test_position_store", "pipeline/test_import_killed",
        "pipeline/test_live", "pipeline/test_live_restart", "pipeline/test_load_killed", "pipeline/test_source_killed",
        "pipeline/test_workers_killed", "torture/holds/test_holds", "torture/test_torture",
    )
)  # fmt: skip


class ProcessStarts:
    """Which modules of tests started a process, while it counts."""

    def __init__(self) -> None:
        self.module = ""
        self._modules: set[str] = set()
        begin = subprocess.Popen.__init__

        def counted(popen: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:
            self._note()
            begin(popen, *args, **kwargs)

        subprocess.Popen.__init__ = counted  # type: ignore[method-assign, assignment]
        os.register_at_fork(before=self._note)

    def _note(self) -> None:
        self._modules.add(self.module)

    def forget(self) -> None:
        """The present module has started none so far."""
        self._modules.discard(self.module)

    def has(self, module: str) -> bool:
        """True if a test of the module, or a fixture for one, started a process."""
        return module in self._modules


def may_run_again(item: pytest.Item, starts: ProcessStarts) -> bool:
    """True if the test has processes, and its verdict is not one on data."""
    module = item.nodeid.partition("::")[0]
    if module.removeprefix("tests/").partition("/")[0] in PURE or module in VERDICTS_ON_DATA:
        return False
    if item.get_closest_marker("no_rerun"):
        return False
    return starts.has(module) or any(item.get_closest_marker(name) for name in ("spark", "browser"))


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed test; ``place``: its ID with the whole path; ``text``: what pytest says of it."""

    test: str
    place: str
    again: bool
    text: str


def write_verdict(failures: list[Failure], *, other: bool) -> None:
    """Tells the program that started this run. ``other``: something failed that is no test, such as a leftover process."""
    if path := os.environ.get(VERDICT_VARIABLE):
        Path(path).write_text(json.dumps({"failures": [asdict(one) for one in failures], "other": other}))


def check_ledger(text: str, today: date) -> list[str]:
    """What is wrong with the list of known tests."""
    entries = tomllib.loads(text).get("test", [])
    wrong = [f"{len(entries)} entries, {MOST_KNOWN} at most"] if len(entries) > MOST_KNOWN else []
    for entry in entries:
        if missing := {"id", "first_seen", "cause"} - entry.keys():
            wrong.append(f"{entry.get('id', entry)}: without {', '.join(sorted(missing))}")
        elif entry["first_seen"] + KNOWN_FOR < today:
            wrong.append(f"{entry['id']}: known since {entry['first_seen']}, more than {KNOWN_FOR.days} days; mend it")
    return wrong


def run(arguments: list[str], verdict: Path) -> int:
    """Runs pytest; its failures are in the file ``verdict`` afterwards, if it came to an end."""
    verdict.unlink(missing_ok=True)
    environment = {**os.environ, VERDICT_VARIABLE: str(verdict)}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode


def main(arguments: list[str]) -> int:
    """Returns pytest's exit status; 0 if all that failed passed alone."""
    if wrong := check_ledger(LEDGER.read_text(), datetime.now(UTC).date()):
        sys.stderr.write("".join(f"{LEDGER.name}: {line}\n" for line in wrong))
        return 1
    with tempfile.TemporaryDirectory() as folder:
        verdict = Path(folder) / "verdict.json"
        status = run(arguments, verdict)
        if status != pytest.ExitCode.TESTS_FAILED or not verdict.exists():
            return status
        told = json.loads(verdict.read_text())
        first = {one["test"]: one for one in reversed(told["failures"])}
        if told["other"] or not 0 < len(first) <= MOST_AGAIN or not all(one["again"] for one in first.values()):
            return status
        sys.stdout.write(f"\nonce more, alone: {' '.join(first)}\n")
        sys.stdout.flush()
        if run(["-n", "0", "-m", "", *(one["place"] for one in first.values())], verdict) != pytest.ExitCode.OK:
            return status
        for test, one in first.items():
            sys.stdout.write(f"\n{one['text']}\nFLAKY (failed beside others, passed alone): {test}\n")
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
