"""The Spark session: what executors get, and what is kept from them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from zipimport import zipimporter

import pyspark
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession, SQLContext

from pipeline.errors import JavaMissing
from pipeline.spark.session import _configuration, _own_interrupt_handler, _stop, code_archive, find_java, spark_session
from tests.support.ports import free_port
from tests.support.session import PROJECT
from tests.support.waiting import wait_until


def ask_executor(spark, question):
    """The answer of one Python worker."""

    def work(batches):
        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"answer": [str(question())]})

    return spark.range(0, 1, 1, 1).mapInArrow(work, "answer string").collect()[0]["answer"]


def test_executors_have_our_rules_and_never_django(spark):
    def question():
        import importlib

        for name in (
            "source.data_source",
            "frames.read_events",
            "frames.stored",
            "frames.differences",
            "frames.work_out_rooms",
            "importing.runners",
        ):
            importlib.import_module(f"pipeline.{name}")
        return [name for name in sys.modules if name.split(".")[0] in ("django", "replsite")]

    assert ask_executor(spark, question) == "[]"


def test_executors_do_not_see_the_sites_environment(spark):
    def question():
        import os

        return [name for name in os.environ if name.startswith(("DJANGO", "DATABASE_URL", "REPLSITE"))]

    assert ask_executor(spark, question) == "[]"


def test_workers_keep_the_memory_of_a_batch_for_the_next(spark):
    def question():
        import os

        return {name: int(os.environ[name]) >> 20 for name in sorted(os.environ) if name.startswith("MALLOC_")}

    assert ask_executor(spark, question) == "{'MALLOC_MMAP_THRESHOLD_': 32, 'MALLOC_TRIM_THRESHOLD_': 64}"


def test_workers_of_this_machine_begin_with_sparks_sources_read(spark):
    def question():
        import pyspark.worker

        return ".zip" not in pyspark.worker.__file__

    assert ask_executor(spark, question) == "True"


def test_a_cluster_starts_its_workers_by_itself(tmp_path):
    here, there = (_configuration(tmp_path, master) for master in ("local[2]", "spark://a.test:7077"))
    assert "spark.python.daemon.module" in here and "spark.python.daemon.module" not in there


def test_executors_run_this_interpreter(spark):
    assert ask_executor(spark, lambda: sys.executable) == sys.executable


@pytest.mark.parametrize("error", [Py4JNetworkError("the JVM was killed"), ConnectionRefusedError()])
def test_a_jvm_that_is_gone_hides_no_error_and_leaves_the_next_session_free(monkeypatch, error):
    def stop():
        raise error

    ended = []
    session = SimpleNamespace(stop=stop, sparkContext=SimpleNamespace(stop=lambda: ended.append("context")))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as jvm:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm, shutdown=stop))
        monkeypatch.setattr(SparkContext, "_jvm", object())
        monkeypatch.setattr(SparkSession, "_instantiatedSession", session)
        monkeypatch.setattr(SparkSession, "_activeSession", session)
        monkeypatch.setattr(SQLContext, "_instantiatedContext", object())
        _stop(session)
        left = (
            SparkContext._gateway,
            SparkContext._jvm,
            SparkSession._instantiatedSession,
            SparkSession._activeSession,
        )
        assert (ended, left, SQLContext._instantiatedContext) == (["context"], (None,) * 4, None)
        assert jvm.poll() == 0


@pytest.fixture
def interruptible():
    """A shell that starts the tests in the background has interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_until_the_jvm_has_started(interruptible):
    before, reached = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), _own_interrupt_handler():
        signal.raise_signal(signal.SIGINT)
        reached.append("started")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Spark puts its own in the way
    assert reached == ["started"] and signal.getsignal(signal.SIGINT) is before


def test_a_session_that_is_there_is_used_and_stays(spark, tmp_path):
    with spark_session("inner", folder=tmp_path) as inner:
        assert inner is spark
    assert spark.range(3).count() == 3


def test_the_archive_has_the_rooms_and_changes_its_name_with_them(tmp_path):
    archive = code_archive(tmp_path)
    names = zipfile.ZipFile(archive).namelist()
    assert "events/history/rows.py" in names and "pipeline/source/data_source.py" in names
    assert not [name for name in names if "management" in name or name.startswith("replsite")]
    assert code_archive(tmp_path) == archive


def test_workers_need_not_compile_the_modules_of_the_archive(tmp_path):
    archive = code_archive(tmp_path)
    found = zipimporter(str(archive)).find_spec("pipeline")
    assert found.loader.get_filename("pipeline") == f"{archive}/pipeline/__init__.pyc"
    assert found.loader.get_source("pipeline") == (PROJECT / "pipeline" / "__init__.py").read_text()
    module = zipimporter(f"{archive}/pipeline/frames").get_code("packs")
    assert module.co_filename == str(PROJECT / "pipeline" / "frames" / "packs.py")


def test_java_of_the_project_is_found_when_there_is_no_other(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="script/demo"):
        find_java(tmp_path)
    (tmp_path / ".java" / "bin").mkdir(parents=True)
    Path(tmp_path / ".java" / "bin" / "java").touch()
    assert find_java(tmp_path) == str(tmp_path / ".java")


def test_a_java_that_is_gone_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JavaMissing, match=f"JAVA_HOME is {tmp_path}/gone, and there is no bin/java in it"):
        find_java(tmp_path)


@pytest.mark.parametrize("on_path", [True, False])
@pytest.mark.parametrize(
    ("version", "shown"), [("1.8.0_292", "Java 8"), ("11.0.2", "Java 11"), ("17.0.1", None), ("25", None)]
)
def test_a_java_that_is_too_old_is_named(tmp_path, monkeypatch, version, shown, on_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(0o755)
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    if on_path:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(java.parent))
    else:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=f"needs Java 17 or newer, and .* is {shown} in") if shown else nullcontext():
        find_java(tmp_path)


STARTED = """
import sys
from pathlib import Path
from pipeline.errors import PipelineError
from pipeline.spark.session import spark_session

def work(batches):
    import pyarrow
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"answer": [sys.executable]})

try:
    with spark_session("started", folder=Path(sys.argv[1]), master="local[1]") as spark:
        print(spark.range(0, 1, 1, 1).mapInArrow(work, "answer string").collect()[0]["answer"], spark.version)
except PipelineError as error:
    print(type(error).__name__, error)
"""


def start(folder, **environment):
    command = [sys.executable, "-c", STARTED, str(folder)]
    given = {**os.environ, **environment}
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, env=given)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.scenario
@pytest.mark.parametrize("home", ["other", "gone"])
def test_another_spark_and_another_python_are_ignored(tmp_path, home):
    other = tmp_path / "other"
    for script in ("bin/spark-submit", "conf/spark-env.sh", "python3"):
        (other / script).parent.mkdir(parents=True, exist_ok=True)
        (other / script).write_text("#!/bin/sh\nexit 3\n")
        (other / script).chmod(0o755)
    (other / "jars").mkdir()
    (other / "conf" / "spark-defaults.conf").write_text("spark.driver.defaultJavaOptions -XX:+NoSuchOption\n")
    variables = {
        "SPARK_CONF_DIR": str(other / "conf"), "SPARK_REMOTE": "sc://nowhere.test",
        "PYSPARK_PYTHON": str(other / "python3"), "PYSPARK_DRIVER_PYTHON": "jupyter", "MASTER": "mesos://nowhere",
    }  # fmt: skip
    assert start(tmp_path, **variables, SPARK_HOME=str(tmp_path / home)) == f"{sys.executable} {pyspark.__version__}"


def test_a_jvm_that_does_not_start_is_one_clear_error(tmp_path):
    said = start(tmp_path, JAVA_TOOL_OPTIONS="-XX:+NoSuchOption")
    assert said.startswith("SparkNotStarted Spark did not start: ")
    assert "and are set: " in said and "JAVA_TOOL_OPTIONS" in said and "\n" not in said


def test_a_process_killed_while_the_jvm_starts_leaves_nothing_among_the_machines_temporary_files(tmp_path):
    java, temporary, folder = tmp_path / "java" / "bin" / "java", tmp_path / "temporary", tmp_path / "folder"
    java.parent.mkdir(parents=True)
    temporary.mkdir()
    java.write_text("#!/bin/sh\necho started > $STARTED\nexec cat\n")  # until its standard input is closed
    java.chmod(0o755)
    given = {"JAVA_HOME": str(java.parents[1]), "TMPDIR": str(temporary), "STARTED": str(tmp_path / "started")}
    command = [sys.executable, "-c", STARTED, str(folder)]
    with subprocess.Popen(command, cwd=PROJECT, env={**os.environ, **given}) as process:
        wait_until((tmp_path / "started").exists)
        process.kill()
    assert list(temporary.iterdir()) == []
    assert len(list((folder / "tmp").iterdir())) == 1


PAGE = """
import os
import sys
from pathlib import Path
from urllib.request import urlopen
import psutil
from pipeline.spark.session import spark_page, spark_session

os.environ.pop("SPARK_LOCAL_IP", None)
# As on a cluster, where executors reach the driver under another address than loopback.
own = {"spark.driver.host": "127.0.0.2", "spark.driver.bindAddress": "127.0.0.2"}
conf = {**spark_page(int(sys.argv[2])), **own}
with spark_session("page", folder=Path(sys.argv[1]), master="local[1]", conf=conf) as spark:
    address = spark.sparkContext.uiWebUrl
    (jvm,) = [child for child in psutil.Process().children() if child.name().startswith("java")]
    listening = {f"{found.laddr.ip}:{found.laddr.port}" for found in jvm.net_connections() if found.status == "LISTEN"}
    print(address, urlopen(f"{address}/jobs/").status, spark.conf.get("spark.driver.port"), *sorted(listening))
"""


@pytest.mark.timeout(900)
@pytest.mark.scenario
def test_sparks_page_is_switched_on_for_this_machine_only(tmp_path):
    command = [sys.executable, "-c", PAGE, str(tmp_path), str(free_port())]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    address, status, driver, *listening = done.stdout.split()
    at = {port: host.removeprefix("::ffff:") for host, _, port in (one.rpartition(":") for one in listening)}
    assert address.startswith("http://127.0.0.1:") and status == "200", done.stderr
    assert at[address.rpartition(":")[2]] == "127.0.0.1" and at[driver] == "127.0.0.2"
    assert set(at.values()) == {"127.0.0.1", "127.0.0.2"}
