"""A real standalone cluster: import and streaming source run there with the code that the job ships, and lose an executor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.db.driver import dsn
from tests.conftest import end_processes
from tests.pipeline.imports import bare_room, content, run_import, staging_tables, write_lines
from tests.support.emptying import empty_tables
from tests.support.room_data import ROOMS
from tests.support.session import PROJECT
from tests.support.spark_cluster import spark_cluster
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import sessions, store_positions

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.scenario]
STAGING = "replsite spark staging"
EVENTS_OF_MADE_ROOM = 2_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def start_script(database_url):
    """``start_script(code, *arguments)``: Python with Django set up on the test database; ended with the test."""
    started = []

    def start(code, *arguments):
        command = [sys.executable, "-c", "import sys, django; django.setup()\n" + textwrap.dedent(code), *arguments]
        # Workers of the cluster have Spark's own daemon, and no path of ours.
        environment = {**os.environ, "DATABASE_URL": database_url, "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(
            subprocess.Popen(command, cwd=PROJECT, env=environment, text=True, start_new_session=True, **pipes)
        )
        return started[-1]

    yield start
    end_processes(started)


def tasks_are_at_work() -> bool:
    return bool(sessions(STAGING))


_DRIVER = """
    import json
    from django.core.management import call_command
    from pipeline.spark.site_session import site_session
    from pipeline.source.data_source import register

    master, dsn, folder, *files = sys.argv[1:]

    def where(batches):
        import os, pyarrow, pipeline.source.data_source
        for batch in batches:
            file, names = os.path.abspath(pipeline.source.data_source.__file__), sorted(os.environ)
            found = {"file": file, "names": names, "modules": sorted(sys.modules)}
            yield pyarrow.RecordBatch.from_pydict({"found": [json.dumps(found)] * batch.num_rows})

    with site_session("cluster", master) as spark:
        register(spark)
        for row in spark.range(0, 2, 1, 2).mapInArrow(where, "found string").collect():
            print(row["found"], flush=True)
        call_command("import_events", *files, "--master", master, "--json")
        sys.stdout.flush()
        while sys.stdin.readline():
            facts = spark.readStream.format("replsite").option("dsn", dsn).option("stream", "caches").option("maxRows", 50)
            sink = facts.load().writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
            sink.trigger(availableNow=True).start(f"{folder}/facts").awaitTermination()
            tokens = [row["token"] for row in spark.read.parquet(f"{folder}/facts").select("token").collect()]
            print(json.dumps(sorted(tokens)), flush=True)
"""


@pytest.fixture
def files(tmp_path):
    """Real rooms, and made ones that give both workers something to do."""
    made = [write_lines(tmp_path / f"made{n}.jsonl", *bare_room(n, EVENTS_OF_MADE_ROOM)) for n in range(2)]
    return [*made, *(ROOMS / name / "events.jsonl.gz" for name in ("v9_restricted", "v10_rejected"))]


@pytest.fixture
def expected(spark, files):
    """What an import on this machine puts into the tables, which are empty again."""
    run_import(*files)
    found = content()
    empty_tables()
    return found


def hear(process) -> object:
    """The next line of JSON; the time-out of the test is the deadline."""
    line = process.stdout.readline()
    assert line, f"the driver ended with {process.wait(DEADLINE_SECONDS)}"
    return json.loads(line)


def follow(process) -> list[int]:
    """Have the driver take up what is new; the tokens of all facts that are in its files."""
    process.stdin.write("\n")
    process.stdin.flush()
    return hear(process)


def append(facts: int) -> None:
    registry.get("caches").append(*(CacheInvalidation(cache_name="c", keys=[str(n)]) for n in range(facts)))
    store_positions()


def check_executor(executor, folder) -> None:
    """It has our code from the job alone, and nothing of the site."""
    assert executor["file"].startswith(str(folder)) and ".zip/" in executor["file"]
    assert not [n for n in executor["modules"] if n.split(".")[0] in ("django", "replsite")]
    assert not [name for name in executor["names"] if name.startswith(("DJANGO", "DATABASE", "REPLSITE"))]


@pytest.mark.timeout(900)
def test_import_and_source_on_a_cluster_that_loses_an_executor_do_what_they_do_here(
    cluster, expected, files, start_script, tmp_path
):
    driver = start_script(_DRIVER, cluster.master, dsn(), str(tmp_path), *map(str, files))
    for _ in cluster.workers:
        check_executor(hear(driver), cluster.folder)
    wait_until(lambda: tasks_are_at_work() or driver.poll() is not None, 4 * DEADLINE_SECONDS)
    assert cluster.kill_executor(0), "no executor of the first worker was at work"
    summary = hear(driver)
    assert summary["read"] == summary["imported"] == len(expected["events"])
    assert content() == expected
    assert staging_tables() == []

    dropped = CacheInvalidation.objects.count()  # the import's own, one or more for each room
    append(120)
    assert len(follow(driver)) == dropped + 120
    append(30)
    tokens = follow(driver)
    assert len(tokens) == len(set(tokens)) == dropped + 150
    driver.stdin.close()
    assert driver.wait(2 * DEADLINE_SECONDS) == 0
