"""Creates Spark sessions, and sends the site's code to the executors. Only this module configures Spark.

Assumes that this process runs no JVM yet, because a JVM's memory and environment are fixed when it starts. The JVM and
its Python workers get an environment without the variables of Django and of the site. So a worker cannot load Django by
accident and never sees the site's secrets. Variables of another Spark are left out, too: PySpark's own Spark runs, with
this Python. This module does not use Django either, since notebooks use it as well.
"""

from __future__ import annotations

import hashlib
import logging
import marshal
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import JavaMissing, SparkNotStarted
from pipeline.private_files import make_folder
from pipeline.spark.masters import check_master, check_master_answers, driver_address, is_local, retrying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "LIGHT_DRIVER",
    "PRIVATE_FILES",
    "SHIPPED_PACKAGES",
    "code_archive",
    "find_java",
    "spark_page",
    "spark_session",
]

#: Packages whose modules executors may import. ``replsite`` is never one of them.
SHIPPED_PACKAGES = ("streams", "state", "events", "pipeline")
#: For a driver that only hands out tasks. Full JIT compilation would take half of the driver's CPU time and never pay
#: off.
LIGHT_DRIVER = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
}
#: For a driver on this machine: only its own account may read its files. On a cluster, executors may have another account.
PRIVATE_FILES = {"spark.hadoop.fs.permissions.umask-mode": "077"}
_LOOPBACK = "127.0.0.1"
_PAGE = "spark.ui.enabled"
#: Workers allocate and free memory for each batch. By default the C library returns freed memory to the system. Getting it
#: back page by page took a fifth of a worker's time. With these settings the C library keeps more of it.
_MEMORY_OF_WORKERS = {
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(64 * 1024 * 1024),
}
#: A batch that Spark gives to a worker. Spark and the worker both hold several batches at a time, and a value may have
#: a megabyte.
_BATCH_BYTES = str(4 * 1024 * 1024)
#: The module that forks the workers on this machine. Its folder is put on the workers' path, and holds nothing else.
_DAEMON = {"spark.python.daemon.module": "warm_spark_daemon"}
_DAEMONS_FOLDER = Path(__file__).resolve().parent / "workers"
_PACKAGES_FOLDER = Path(__file__).resolve().parents[2]
_NOT_SHIPPED = {"management", "__pycache__", "templates"}
_JVM_END_SECONDS = 10.0
#: Prefixes of Django's and our own variables, which the JVM does not get.
_HIDDEN_PREFIXES = ("DJANGO_", "DATABASE_URL", "REPLSITE_")
#: Variables that belong to another Spark, and to Spark Connect. ``SPARK_HOME`` and the Pythons are set to our own.
_OF_ANOTHER_SPARK = (
    "SPARK_CONF_DIR", "SPARK_ENV_LOADED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE",
    "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "MASTER",
)  # fmt: skip
#: Variables with which a JVM may not start. They are kept, because a site may need them, and named in the error.
_OF_JVM = (
    "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES", "SPARK_LOCAL_IP",
    "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_DIRS", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS",
    "CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR",
)  # fmt: skip
_OLDEST_JAVA = 17
_JAVA_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?([0-9]+)', re.MULTILINE)
_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} spark %p %c{1}: %m%n%ex
"""


@contextmanager
def spark_session(
    name: str,
    *,
    folder: Path,
    master: str = "local[2]",
    project: Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Yields a Spark session for the block. ``folder`` is for the session's scratch files and the archive of the site's code.

    If this process has a session already, yields that session unchanged, and does not close it. ``project`` is a folder
    that may have Java in a folder ``.java``. ``conf`` has settings of Spark that override those of this module. Raises
    ``JavaMissing``, ``SparkNotStarted``, ``UnusableArguments`` for an invalid master, and ``MasterAway``. The start takes
    some seconds.
    """
    check_master(master)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import, and not needed to read this module

    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    check_master_answers(master)
    make_folder(folder / "tmp")
    archive = code_archive(folder)
    configuration = {**_configuration(folder, master), **(conf or {})}
    session = None
    try:
        environment = _environment_of_jvm(find_java(project), configuration)
        with environment, _temporary_files_in(folder / "tmp"), _own_interrupt_handler(), _clear_errors():
            builder = SparkSession.builder.master(retrying(master)).appName(f"replsite {name}")
            for key, value in configuration.items():
                builder = builder.config(key, value)
            session = builder.getOrCreate()
        logging.getLogger("py4j").setLevel(logging.WARNING)  # below this it logs every connection
        session.sparkContext.addPyFile(str(archive))
        yield session
    finally:
        if session is None:
            _end_jvm()
        else:
            _stop(session)


def spark_page(port: int) -> Mapping[str, str]:
    """Returns the settings that switch on Spark's page, on ``port`` or one of the next 16 ports. The page cannot end jobs.

    The page listens on a loopback address, unless ``SPARK_LOCAL_IP`` is set. On YARN and Kubernetes, the page listens
    on the address that Spark chooses.
    """
    return {_PAGE: "true", "spark.ui.port": str(port), "spark.ui.killEnabled": "false"}


def _stop(session: SparkSession) -> None:
    """Stops the session and its JVM.

    Errors of Spark's ``stop`` are ignored, so that they do not replace an error that ended the work.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - with Spark only

    try:
        # This fails if the JVM is gone, or if an interrupt left it in the middle of an answer.
        session.stop()
    except (Py4JError, OSError):
        _forget(session)
    finally:
        # Without this, the next session of this process would use the dead JVM.
        _end_jvm()


def _forget(session: SparkSession) -> None:
    """Clears PySpark's references to a session whose ``stop`` has failed, so that a new session can be started."""
    from pyspark.sql import SparkSession, SQLContext  # noqa: PLC0415

    session.sparkContext.stop()  # the failed stop already dropped the JVM, so this one does the rest without it
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Keeps this process's SIGINT handler, which Spark would replace. Delays interrupts until Spark has started."""
    # Spark installs a SIGINT handler that talks to the JVM, even in the middle of another call. So our handler is
    # restored. An interrupt during the start is delayed: it would leave a JVM that no object refers to and that never
    # ends.
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    waiting: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        signal.raise_signal(waiting[0])


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Converts the errors of a start to ``SparkNotStarted``, which names the variables that may be the reason."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - with Spark only
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        given = ", ".join(name for name in _OF_JVM if name in os.environ) or "none of them"
        raise SparkNotStarted(
            f"Spark did not start: {first} What its JVM said stands above. Variables that change how it starts, and are set: "
            f"{given}. Unset those of another Java or Spark, and see REPLSITE_SPARK_CONF."
        ) from error


def _end_jvm() -> None:
    """Ends the JVM by closing its standard input. Spark's ``stop`` would leave the JVM running."""
    from pyspark import SparkContext  # noqa: PLC0415

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    with suppress(Exception):  # the call sends a message to the JVM, which may be gone
        gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(_JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _configuration(folder: Path, master: str) -> dict[str, str]:
    scratch = str(folder / "scratch")
    settings = {
        _PAGE: "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxBytesPerBatch": _BATCH_BYTES,
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.redaction.regex": "(?i)secret|password|passwd|token|access[.]?key|dsn",
        "spark.sql.redaction.options.regex": "(?i)url|dsn|password|secret|token",
        "spark.driver.extraJavaOptions": _java_options(folder),
        **_MEMORY_OF_WORKERS,
    }
    if (address := driver_address(master)) is not None:
        settings |= {"spark.driver.host": address, "spark.driver.bindAddress": address}
    if is_local(master):
        settings |= _DAEMON
        if "SPARK_LOCAL_DIRS" not in os.environ:
            settings["spark.local.dir"] = scratch
    return settings


def _java_options(folder: Path) -> str:
    """Returns the options for the JVM. They make the JVM write its temporary files to ``folder``.

    The JVM logs only errors to stderr, because the progress of jobs is shown on stderr.
    """
    levels = folder / "log4j2.properties"
    levels.write_text(_LOGGING)
    return f"-Djava.io.tmpdir={folder / 'tmp'} -XX:-UsePerfData -Dlog4j2.configurationFile={levels.as_uri()}"


@contextmanager
def _environment_of_jvm(java_home: str | None, configuration: Mapping[str, str]) -> Iterator[None]:
    """Changes the environment variables of this process while the block starts the JVM.

    Removes the variables of Django, of the site and of another Spark, and sets the Spark to run and the Python of its
    workers.

    Workers of a cluster run the Python that the setting ``spark.pyspark.python`` names. Without this setting, they run
    the Python that has the same path as the driver's Python. This path must exist on their hosts.
    """
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(_HIDDEN_PREFIXES) or name in _OF_ANOTHER_SPARK:
            del os.environ[name]
    python = configuration.get("spark.pyspark.python", sys.executable)
    os.environ.update(PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_HOME=_own_spark())
    if configuration.items() >= _DAEMON.items():
        places = [str(_DAEMONS_FOLDER), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(places))
    if address := configuration.get("spark.driver.bindAddress"):
        if configuration.get(_PAGE) == "true":
            # Spark's page listens on this address only, and everything else on the driver's address, which is set.
            address = _LOOPBACK
            os.environ.setdefault("SPARK_PUBLIC_DNS", os.environ.get("SPARK_LOCAL_IP", address))
        os.environ.setdefault("SPARK_LOCAL_IP", address)
    if java_home:
        os.environ["JAVA_HOME"] = java_home
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Has Python make temporary files in ``folder`` for the block.

    PySpark makes a folder in which the JVM says its port. Of a process that is killed meanwhile, it would stay in ``/tmp``.
    """
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def find_java(project: Path | None = None) -> str | None:
    """Returns the ``JAVA_HOME`` to use, or None if ``java`` is on the path.

    If the variable ``JAVA_HOME`` is set, returns its value. Otherwise, if there is no ``java`` on the path, returns the
    folder ``.java`` of the project. Raises ``JavaMissing`` if there is no Java in any of these three places, if
    ``JAVA_HOME`` names a folder without Java, or if Java is too old.
    """
    if home := os.environ.get("JAVA_HOME"):
        if not (Path(home) / "bin" / "java").exists():
            raise JavaMissing(
                f"JAVA_HOME is {home}, and there is no bin/java in it. Unset it, or set it to a Java {_OLDEST_JAVA} or newer."
            )
        _check_version(Path(home), "JAVA_HOME")
        return home
    if java := shutil.which("java"):
        _check_version(Path(java).resolve().parents[1], "java on the PATH")
        return None
    fetched = (project or _PACKAGES_FOLDER) / ".java"
    if (fetched / "bin" / "java").exists():
        return str(fetched)
    raise JavaMissing(
        f"Spark needs Java {_OLDEST_JAVA} or newer, and there is none: JAVA_HOME is not set, no java is on the PATH and "
        f"{fetched} does not exist. Run script/demo once, or install openjdk-17-jre-headless."
    )


def _check_version(home: Path, where: str) -> None:
    """Raises ``JavaMissing`` if the Java in ``home`` is too old. Most Javas have a file that says their version."""
    try:
        found = _JAVA_VERSION.search((home / "release").read_text(errors="replace"))
    except OSError:
        return
    if found is not None and int(found[1]) < _OLDEST_JAVA:
        raise JavaMissing(
            f"Spark needs Java {_OLDEST_JAVA} or newer, and {where} is Java {found[1]} in {home}. Install a newer one, and set "
            f"JAVA_HOME to it."
        )


def _own_spark() -> str:
    """Returns the folder of the Spark that belongs to PySpark. Raises ``SparkNotStarted`` if there is none.

    The variable ``SPARK_HOME`` may name a Spark of another version, or one that was removed.
    """
    import pyspark  # noqa: PLC0415 - with Spark only

    package = Path(pyspark.__file__).resolve().parent
    # The wheel's own, one that pip has fetched for another Hadoop, and that of an unpacked Spark: SPARK/python/pyspark.
    for home in (package, package / "spark-distribution", package.parents[1]):
        if (home / "bin" / "spark-submit").exists() and (home / "jars").is_dir():
            return str(home)
    raise SparkNotStarted(
        f"PySpark {pyspark.__version__} in {package} has no Spark of its own. Install pyspark of requirements.txt."
    )


def code_archive(folder: Path) -> Path:
    """Returns the path of a zip file with the site's modules, for executors. Creates the file if it does not exist.

    The file's name has a digest of its contents. The modules are compiled, too: otherwise each worker would compile them.
    A worker with another version of Python uses the sources.
    """
    files = [
        (path, path.relative_to(_PACKAGES_FOLDER))
        for package in SHIPPED_PACKAGES
        for path in sorted((_PACKAGES_FOLDER / package).rglob("*.py"))
        if not _NOT_SHIPPED.intersection(path.relative_to(_PACKAGES_FOLDER).parts)
    ]
    digest = hashlib.blake2b(sys.version.encode(), digest_size=8)
    for path, name in files:
        digest.update(f"{name}\0".encode() + path.read_bytes())
    archive = folder / f"code-{digest.hexdigest()}.zip"
    if not archive.exists():
        fresh = archive.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(fresh, "w") as bundle:
            for path, name in files:
                bundle.write(path, str(name))
                bundle.writestr(f"{name}c", _compiled(path))
        fresh.rename(archive)  # in one step, so another process never sees half an archive
    return archive


def _compiled(path: Path) -> bytes:
    """Returns a module as a ``.pyc`` file that is not compared with its source (PEP 552)."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)  # from ``__pycache__``, if it is there
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)
