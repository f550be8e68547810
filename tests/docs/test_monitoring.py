"""The alert rules and the dashboard: they use what is exported, and each alert fires on what really happens, and only then."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from django.urls import resolve
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from events.persist import counters
from replsite.live_rows.jobs import JobFigures, JobsView
from replsite.live_rows.snapshot import Snapshot
from replsite.live_rows.storage import StorageView, TableView
from replsite.live_rows.streams import ExpectedRow
from replsite.live_rows.workers import CountView
from replsite.metrics.cluster import SnapshotCollector
from replsite.metrics.process import ProcessCollector
from replsite.metrics.table import CLUSTER, PROCESS, SYNAPSE
from replsite.status.words import ExpectedWord, ReaderWord, Severity, Verdict
from streams.follow import lag_histogram
from streams.waiting import wait
from tests.support.session import PROJECT
from tests.support.snapshots import (
    NOW,
    a_holder,
    a_job,
    a_reader,
    a_snapshot,
    a_stream,
    a_writer,
    ago,
    on_stream,
    some_workers,
)

FOLDER = PROJECT / "docs" / "monitoring"
RULES = FOLDER / "replsite-alerts.yaml"
PAGE = PROJECT / "docs" / "how-to" / "monitor-with-prometheus.md"
PROMTOOL = shutil.which("promtool")
EXPORTED = {m.exported + ("_bucket" if m.type == "histogram" else "") for m in (*CLUSTER, *SYNAPSE, *PROCESS)} | {
    "django_http_requests_latency_seconds_by_view_method_bucket"  # django-prometheus
}
_NAME = re.compile(r"\b(?:replsite|synapse|django)_[a-z_]+\b")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: Debian's package prometheus")

Series = dict[str, dict[int, float]]
"""Name with labels -> minute -> value."""
EPOCH = NOW.timestamp()


@pytest.fixture
def periods(settings):
    """Jobs are to be done once an hour."""
    settings.REPLSITE_JOB_PERIODS = {"censor": 3_600}


def rules() -> list[dict]:
    """The alerts."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule]


def dashboard() -> dict:
    return json.loads((FOLDER / "replsite-dashboard.json").read_text())


def panels() -> list[dict]:
    return dashboard()["panels"]


@pytest.fixture(autouse=True)
def roomy(monkeypatch):
    """The disk does not change, whatever else this machine does."""
    monkeypatch.setattr("replsite.metrics.sources.disk_free", lambda: (Path("/"), 50_000_000_000))


def test_rules_and_panels_use_exported_metrics_only() -> None:
    every_rule = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    expressions = [rule["expr"] for rule in every_rule] + [t["expr"] for panel in panels() for t in panel["targets"]]
    expressions += [annotation["expr"] for annotation in dashboard()["annotations"]["list"]]
    expressions += [str(variable["query"]) for variable in dashboard()["templating"]["list"]]
    used = {name for expression in expressions for name in _NAME.findall(expression)}
    assert used - EXPORTED == set()


def test_the_dashboard_shows_every_metric_of_streams_and_readers() -> None:
    used = {name for panel in panels() for target in panel["targets"] for name in _NAME.findall(target["expr"])}
    for name in (
        "stream_facts_completed_total",
        "stream_open_appends",
        "reader_lag_seconds",
        "reader_lag_facts",
        "writer_status",
    ):
        assert f"replsite_{name}" in used


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_every_alert_leads_to_its_line_of_the_page() -> None:
    places = set(re.findall(r'<span id="(\w+)"></span>', PAGE.read_text()))
    for rule in rules():
        page, _, place = rule["annotations"]["runbook_url"].partition("#")
        assert page == f"https://docs.example.org/replsite/how-to/{PAGE.stem}/"
        assert place == rule["alert"].lower() and place in places


def test_links_of_the_dashboard_are_pages_of_the_site_and_labels_of_their_panel() -> None:
    """A link of a panel uses a label that its queries keep."""
    of_panels = [(panel, link) for panel in panels() for link in panel["fieldConfig"]["defaults"].get("links", ())]
    assert len(of_panels) > 10
    for panel, link in of_panels:
        label = re.search(r"labels\.(\w+)}", link["url"])[1]
        assert any(f"{{{{{label}}}}}" in target["legendFormat"] for target in panel["targets"])
    for url in [link["url"] for _, link in of_panels] + [link["url"] for link in dashboard()["links"]]:
        path = url.removeprefix("${site}").partition("?")[0]
        assert resolve(path), url
        assert set(re.findall(r"\$\{(\w+)", url)) <= {"site", "room", "__field"}


def test_every_variable_is_used_and_no_other() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    text = json.dumps({key: value for key, value in dashboard().items() if key != "templating"})
    assert set(re.findall(r"\$\{?(?!__)([a-z]+)", text)) == variables


def lost(ours: object, theirs: object, place: str = "") -> list[str]:
    """The places of values that ``theirs`` does not have."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [one for key in ours for one in lost(ours[key], theirs.get(key), f"{place}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [one for number, value in enumerate(ours) for one in lost(value, theirs[number], f"{place}.{number}")]
    return [] if ours == theirs else [place]


def test_grafana_knows_every_value_of_the_dashboard() -> None:
    """Grafana's own types, made of its schema, read it and lose nothing. Annotations have fields of Prometheus besides."""
    of_prometheus = {"step", "titleFormat", "tagKeys", "textFormat", "useValueForTime"}
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard())))
    gone = [place for place in lost(dashboard(), read) if not place.startswith(".annotations.list.")]
    assert gone == []
    of_annotations = {place.rpartition(".")[2] for place in lost(dashboard()["annotations"], read["annotations"])}
    assert of_annotations <= of_prometheus


def test_the_page_explains_every_alert() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert explained == {rule["alert"] for rule in rules()}


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    done = subprocess.run([PROMTOOL, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_promtool
def test_promtool_takes_our_names() -> None:
    """Synapse's are as they are."""
    cluster, process = CollectorRegistry(), CollectorRegistry()
    cluster.register(SnapshotCollector(lambda: well(1)))
    for measure in (*counters.MEASURES, lag_histogram.DELAY):
        process.register(measure)
    text = (generate_latest(cluster) + generate_latest(process)).decode()
    ours = "".join(f"{line}\n" for line in text.splitlines() if "replsite_" in line)
    assert ours.count("# TYPE") > 20
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=ours, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- scenarios ----------------------------------------------------------------------------------------------------

Scene = Callable[[int], Snapshot | None]
"""Minute -> what the site shows then; None: its database is away."""


def well(minute: int) -> Snapshot:
    """A site where facts come in and are read."""
    now = ago(-60 * minute)
    done = JobsView((), (JobFigures("censor", ago(900 - 60 * minute), None),))
    writer = a_writer(position=10 + minute, facts_written=10 + minute, last_write_at=now)
    reader = a_reader("sender", on_stream(lag_facts=minute % 2, lag_seconds=0.1))
    return a_snapshot(
        a_stream(writer, sequence_value=10 + minute),
        reader,
        as_of=now,
        workers=some_workers(),
        jobs=done,
        storage=replace(storage(5 + minute % 2), standbys=(("standby1", True),)),
    )


def storage(unreferenced: int) -> StorageView:
    return StorageView(
        NOW, TableView("", 1, 2), state_groups=1_000, state_group_rows=2_000, unreferenced_groups=unreferenced
    )


def with_reader(word: ReaderWord, lag: Callable[[int], int], seconds: float) -> Scene:
    status = Verdict(word, Severity.WRONG, "")

    def scene(minute: int) -> Snapshot:
        seen = on_stream(lag_facts=lag(minute), lag_seconds=seconds, status=status)
        return a_snapshot(a_stream(a_writer()), a_reader("sender", seen), as_of=ago(-60 * minute))

    return scene


def some_cut(minute: int) -> Snapshot:
    counts = (CountView("closed", "too slow", 1 + minute // 5),)
    return a_snapshot(workers=some_workers(counts=counts))


def blocked(minute: int) -> Snapshot:
    return a_snapshot(a_stream(a_writer(), holders=(a_holder(60.0 * minute),)), as_of=ago(-60 * minute))


SCENES: dict[str, Scene] = {
    "ReplsiteDatabaseAway": lambda minute: None if minute > 2 else well(minute),
    "ReplsiteSequenceBehind": lambda minute: a_snapshot(a_stream(a_writer(position=10), sequence_value=9)),
    "ReplsiteStreamBlocked": blocked,
    "ReplsiteReaderLate": with_reader(ReaderWord.CATCHING_UP, lambda minute: 1_000 - minute, 45.0),
    "ReplsiteLagGrows": with_reader(ReaderWord.FALLING_BEHIND, lambda minute: 100 + 50 * minute, 5.0),
    "ReplsiteReaderStuck": with_reader(ReaderWord.STUCK, lambda _: 10, 5.0),
    "ReplsiteExpectedWriter": lambda minute: a_snapshot(
        a_stream(
            a_writer(),
            expected=(
                ExpectedRow("events", "web-{n}", 0, None, None, Verdict(ExpectedWord.MISSING, Severity.WRONG, "")),
                ExpectedRow("events", "master", 1, None, None, Verdict(ExpectedWord.THERE, Severity.FINE, "")),
            ),
        ),
        as_of=ago(-60 * minute),
    ),
    "ReplsiteReaderFailed": with_reader(ReaderWord.FAILED, lambda _: 10, 5_000.0),
    "ReplsiteReaderLeftBehind": with_reader(ReaderWord.LEFT_BEHIND, lambda minute: 10 + minute, 5_000.0),
    "ReplsiteFactsParked": lambda minute: a_snapshot(
        a_stream(a_writer()),
        a_reader("sender", on_stream(parked_facts=3)),
        as_of=ago(-60 * minute),
    ),
    "ReplsiteSlowPeersCut": some_cut,
    "ReplsiteStandbyAway": lambda minute: a_snapshot(
        storage=replace(storage(1), standbys=(("standby1", minute < 2), ("standby2", True)))
    ),
    "ReplsiteJobFailed": lambda minute: a_snapshot(jobs=JobsView((), (JobFigures("censor", ago(900), ago(60)),))),
    "ReplsiteJobsWait": lambda minute: a_snapshot(
        jobs=JobsView((a_job(status=Verdict("waiting", Severity.WARNING, "")),))
    ),
    "ReplsiteJobOverdue": lambda minute: a_snapshot(
        as_of=ago(-60 * minute), jobs=JobsView((), (JobFigures("censor", ago(7_000), None),))
    ),
}


def samples(snapshot: Snapshot | None) -> dict[str, float]:
    """What ``/metrics`` shows, as Prometheus writes it."""

    def get() -> Snapshot:
        if snapshot is None:
            from django.db import OperationalError

            raise OperationalError("no route to host")
        return snapshot

    return shown(SnapshotCollector(get))


def shown(collector: Collector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def series(scene: Scene, minutes: int, more_labels: str = 'instance="a"') -> Series:
    found: Series = {}
    for minute in range(minutes):
        for name, value in samples(scene(minute)).items():
            if name.startswith("replsite_snapshot_duration_seconds"):
                continue
            head, _, labels = name[:-1].partition("{")
            own = ",".join(part for part in (labels, more_labels) if part)
            since = EPOCH if head.endswith("_timestamp_seconds") else 0.0  # the clock of promtool begins at 0
            found.setdefault(f"{head}{{{own}}}", {})[minute] = value - since
    return found


def firing(found: Sequence[Series], minutes: int, tmp_path: Path, step: int = 1, only: Sequence[str] = ()) -> set[str]:
    """The alerts (of some) that fire at the end, by asking promtool of each whether it is silent; ``step``: of minutes."""
    inputs = [
        {"series": name, "values": " ".join(str(values.get(minute, "_")) for minute in range(minutes))}
        for one in found
        for name, values in one.items()
    ]
    fired = set()
    for rule in [rule for rule in rules() if not only or rule["alert"] in only]:
        (tmp_path / "rules.yaml").write_text(RULES.read_text())
        asked = [{"eval_time": f"{(minutes - 1) * step}m", "alertname": rule["alert"], "exp_alerts": []}]
        tests = [{"interval": f"{step}m", "input_series": inputs, "alert_rule_test": asked}]
        plan = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{step}m", "tests": tests}
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
        done = subprocess.run(
            [PROMTOOL, "test", "rules", "plan.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or "exp:[" in done.stdout + done.stderr, done.stderr
        if done.returncode:
            fired.add(rule["alert"])
    return fired


@needs_promtool
@pytest.mark.parametrize("alert", SCENES)
@pytest.mark.usefixtures("periods")
def test_each_alert_fires(alert: str, tmp_path: Path) -> None:
    assert firing([series(SCENES[alert], 40)], 40, tmp_path, only=[alert]) == {alert}


@needs_promtool
@pytest.mark.usefixtures("periods")
def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    assert firing([series(well, 40)], 40, tmp_path) == set()


@needs_promtool
@pytest.mark.parametrize("word", [ReaderWord.WAITING, ReaderWord.STOPPED])
def test_a_reader_that_waits_for_a_writer_or_was_stopped_in_order_has_no_alarm_of_its_own(word, tmp_path: Path) -> None:
    readers = [rule["alert"] for rule in rules() if "Reader" in rule["alert"] or "Lag" in rule["alert"]]
    found = series(with_reader(word, lambda minute: 100 + 50 * minute, 500.0), 40)
    assert len(readers) == 5
    assert firing([found], 40, tmp_path, only=readers) == set()


@needs_promtool
def test_processes_that_disagree_for_a_minute_are_told(tmp_path: Path) -> None:
    behind = series(lambda minute: well(max(minute - 3, 0)), 10, 'instance="b"')
    assert firing([series(well, 10), behind], 10, tmp_path) >= {"ReplsitePositionsDiffer"}


@needs_promtool
def test_waits_that_time_out_are_told(tmp_path: Path, monkeypatch) -> None:
    counts: Series = {}
    for minute in range(10):
        monkeypatch.setattr(wait, "timed_out", Counter(events=1 + (minute > 7)))
        for name, value in shown(ProcessCollector()).items():
            own = f"{name[:-1]}," if not name.endswith("{}") else name[:-1]
            counts.setdefault(f'{own}instance="a"}}', {})[minute] = value
    assert firing([counts], 10, tmp_path) == {"ReplsiteWaitsTimeOut"}


@needs_promtool
@pytest.mark.parametrize(("growth", "fires"), [(5, True), (0, False), (-5, False)])
def test_state_groups_that_nothing_needs_and_that_become_more_all_day_are_told(growth, fires, tmp_path) -> None:
    alert = "ReplsiteUnreferencedGroupsGrow"
    found = series(lambda hour: a_snapshot(storage=storage(1_000 + growth * hour)), 30)
    assert firing([found], 30, tmp_path, step=60, only=[alert]) == ({alert} if fires else set())


@needs_promtool
@pytest.mark.usefixtures("periods")
def test_a_job_that_never_went_well_is_overdue(tmp_path) -> None:
    never = series(lambda minute: a_snapshot(as_of=ago(-60 * minute)), 10)
    assert firing([never], 10, tmp_path) == {"ReplsiteJobOverdue"}


@needs_promtool
@pytest.mark.parametrize(("free", "fires"), [(10_000_000, {"ReplsiteDiskFull"}), (50_000_000_000, set())])
def test_a_disk_with_less_than_its_reserve_is_told(free, fires, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("replsite.metrics.sources.disk_free", lambda: (Path("/"), free))
    assert firing([series(well, 10)], 10, tmp_path, only=["ReplsiteDiskFull"]) == fires


@needs_promtool
@pytest.mark.parametrize(("an_hour", "fires"), [(3_000_000_000, True), (500_000_000, False), (-3_000_000_000, False)])
def test_a_disk_that_is_full_within_a_day_is_told(an_hour, fires, tmp_path, monkeypatch) -> None:
    def scene(hour: int) -> Snapshot:
        monkeypatch.setattr("replsite.metrics.sources.disk_free", lambda: (Path("/"), 90_000_000_000 - hour * an_hour))
        return a_snapshot(storage=storage(1))

    alert = "ReplsiteDiskFills"
    assert firing([series(scene, 10)], 10, tmp_path, step=60, only=[alert]) == ({alert} if fires else set())


def test_every_alert_has_a_scene() -> None:
    elsewhere = {
        "ReplsitePositionsDiffer",
        "ReplsiteWaitsTimeOut",
        "ReplsiteUnreferencedGroupsGrow",
        "ReplsiteDiskFull",
    }
    elsewhere |= {"ReplsiteDiskFills"}
    assert set(SCENES) | elsewhere == {rule["alert"] for rule in rules()}


def test_a_scene_without_a_database_shows_nothing_but_that() -> None:
    assert {name.partition("{")[0] for name in samples(None)} == {"replsite_snapshot_up"}
