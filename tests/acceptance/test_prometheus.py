"""A real Prometheus with the configuration of our page, our rules and our dashboard: labels stay, and all can be worked out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from replsite.live_rows.jobs import JobFigures, JobsView
from replsite.metrics.cluster import SnapshotCollector
from tests.support.session import PROJECT
from tests.support.snapshots import a_snapshot, ago
from tests.support.waiting import DEADLINE_SECONDS, wait_until

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here: Debian's package prometheus")
FOLDER = PROJECT / "docs" / "monitoring"
PAGE = PROJECT / "docs" / "how-to" / "monitor-with-prometheus.md"
#: One kind failed last, another went well since.
JOBS = JobsView((), (JobFigures("censor", ago(900), ago(60)), JobFigures("resync", ago(10), None)))


class Prometheus:
    """A server that answers questions."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **question: str) -> Any:
        """The data of an answer; None while it does not answer."""
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(question)}"
        try:
            with urllib.request.urlopen(address, timeout=DEADLINE_SECONDS) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None


@pytest.fixture
def scraped() -> Iterator[str]:
    """The address of a site's metrics."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(lambda: a_snapshot(jobs=JOBS)))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(DEADLINE_SECONDS)


@pytest.fixture
def prometheus(tmp_path: Path, scraped: str, free_port: int) -> Iterator[Callable[..., Prometheus]]:
    """``prometheus(**changes)``: started as the page says, but for these changes of the scrape, and quicker."""
    processes = []

    def start(**changes: Any) -> Prometheus:
        config = yaml.safe_load(re.search(r"```yaml\n(rule_files.*?)```", PAGE.read_text(), re.S)[1])
        (scrape,) = config["scrape_configs"]
        scrape |= {"scrape_interval": "1s", "static_configs": [{"targets": [scraped]}], **changes}
        (tmp_path / "prometheus.yaml").write_text(
            yaml.safe_dump({**config, "global": {"evaluation_interval": "1s", "scrape_timeout": "1s"}})
        )
        shutil.copy(FOLDER / "replsite-alerts.yaml", tmp_path)
        where = ("--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{free_port}", "--log.level=error")
        processes.append(
            subprocess.Popen(
                [PROMETHEUS, "--config.file=prometheus.yaml", *where], cwd=tmp_path, stdout=subprocess.DEVNULL
            )
        )
        found = Prometheus(free_port)
        wait_until(lambda: (found.ask("query", query="replsite_snapshot_up") or {}).get("result"))
        return found

    yield start
    for process in processes:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def failed_kinds(server: Prometheus) -> set[str]:
    found = (server.ask("alerts") or {"alerts": ()})["alerts"]
    return {one["labels"]["job"] for one in found if one["labels"]["alertname"] == "ReplsiteJobFailed"}


def evaluated_rules(server: Prometheus) -> list[dict[str, Any]]:
    """All rules, once each was worked out."""
    groups = (server.ask("rules") or {"groups": ()})["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return [] if any(rule["health"] == "unknown" for rule in rules) else rules


def test_labels_stay_what_they_are_and_everything_can_be_worked_out(prometheus) -> None:
    server = prometheus()
    wait_until(lambda: failed_kinds(server) == {"censor"})
    assert [label for label in server.ask("labels") if label.startswith("exported_")] == []
    rules = wait_until(lambda: evaluated_rules(server))
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    dashboard = json.loads((FOLDER / "replsite-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in [*expressions, *(one["expr"] for one in dashboard["annotations"]["list"])]:
        said = re.sub(r"\$(stream|instance|reader)\b", ".*", expression)
        assert server.ask("query", query=said) is not None, said


def test_a_scrape_that_keeps_its_own_labels_names_the_right_jobs_as_well(prometheus) -> None:
    """What many installations do, since it is Prometheus's default."""
    server = prometheus(honor_labels=False)
    wait_until(lambda: failed_kinds(server) == {"censor"})
