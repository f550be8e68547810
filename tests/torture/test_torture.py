"""Some moments of everything at once, and a minute with another seed in `script/test --all`.

`python -m tests.torture --facts 1000000` is the long run by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.effort import SEED
from tests.torture.orchestrator import PLANTED, Options, Torture
from tests.torture.site import Site, site_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("torture")) as site:
        yield site


def small(seconds: float, fault: str) -> Options:
    """Writers that meet each other often and come and go, and nothing else that could go wrong. Ends with the first finding."""
    return Options(
        seed=1, seconds=seconds, writers=2, servers=1, followers=2, threads=4, rename_seconds=2.0,
        chaos_mean_seconds=0, plant=fault, ends_when_noticed=True,
    )  # fmt: skip


@pytest.mark.scenario
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_noticed(site: Site, tmp_path: Path, fault: str):
    report = Torture(site, small(120, fault), tmp_path).run()
    rules = {violation.rule for violation in report.violations}
    assert rules & {"fact is missing", "position passed a fact before its commit"}, report


@pytest.mark.scenario
def test_without_the_fault_the_same_run_is_clean(site: Site, tmp_path: Path):
    report = Torture(site, small(5, ""), tmp_path).run()
    assert not report.violations, report
    assert report.rows_seen >= 2 * report.facts > 0


#: Moments with the gate's seed, a minute with one of chance.
SECONDS = 50 if "REPLSITE_TEST_SEED" in os.environ else 10


@pytest.mark.timeout(300)
def test_every_log_equals_the_table(site: Site, tmp_path: Path):
    report = Torture(site, Options(seed=SEED, seconds=SECONDS), tmp_path).run()
    assert not report.violations, f"repeat it with: python -m tests.torture --seed {SEED}\n{report}"
    assert report.facts > 1_000
    assert report.rows_seen >= 8 * report.facts
    assert report.events["kill postmaster"] + report.events["kill backend"] >= 1
