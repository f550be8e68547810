"""Some moments of all clients and readers, and half a minute and each planted fault in `script/test --all`.

`python -m tests.torture.holds` is the long run by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.effort import SEED
from tests.torture.holds.run import Options, Report, run, set_up, with_plant
from tests.torture.holds.tables import PLANTS
from tests.torture.own_postgres import OwnPostgres

pytestmark = [pytest.mark.slow, pytest.mark.no_rerun, pytest.mark.timeout(300)]


#: Moments with the gate's seed, half a minute with one of chance.
SECONDS = 30 if "REPLSITE_TEST_SEED" in os.environ else 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    with closing(OwnPostgres(tmp_path_factory.mktemp("holds"))) as own:
        set_up(own)
        yield own


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_reader_misses_a_fact(server: OwnPostgres, asynchronous: bool):
    report = run(server, Options(SEED, seconds=SECONDS, crash_seconds=2, asynchronous=asynchronous))
    assert not report.violations, f"repeat it with: python -m tests.torture.holds --seed {SEED}\n{report}"
    assert report.facts > 1_000
    assert report.events["crash"]


@pytest.mark.scenario
@pytest.mark.parametrize("plant", [name for name, plant in PLANTS.items() if not plant.is_rare])
def test_a_planted_fault_is_noticed(server: OwnPostgres, plant: str):
    report = Report()
    for seconds in (2, 5, 15, 40, 100):  # some of the moments that a fault needs are rare
        report = run(server, with_plant(plant, 1, seconds))
        if report.violations:
            break
    assert report.violations, report
    assert bool(report.weaknesses) == PLANTS[plant].check_finds
