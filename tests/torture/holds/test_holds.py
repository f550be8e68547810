"""A short run of all clients and readers, and each planted fault; ``python -m tests.torture.holds`` is the long run by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.torture.holds.run import Options, Report, run, set_up, with_plant
from tests.torture.holds.tables import PLANTS
from tests.torture.own_postgres import OwnPostgres

pytestmark = [pytest.mark.slow, pytest.mark.no_rerun, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    with closing(OwnPostgres(tmp_path_factory.mktemp("holds"))) as own:
        set_up(own)
        yield own


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_reader_misses_a_fact(server: OwnPostgres, asynchronous: bool):
    seed = random.randrange(10**6)
    report = run(server, Options(seed, seconds=12, crash_seconds=4, asynchronous=asynchronous))
    assert not report.violations, f"repeat it with: python -m tests.torture.holds --seed {seed}\n{report}"
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
