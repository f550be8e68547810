"""Settings of Spark that cannot work are said by ``manage.py check``, before a job begins."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class

from pipeline.checks import check_spark_settings


def told() -> list[str]:
    return [found.id for found in check_spark_settings(None)]


def test_the_defaults_are_well():
    assert told() == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("REPLSITE_SPARK_MASTER", "localhost:7077", "pipeline.E001"),
        ("REPLSITE_SPARK_CONF", ["spark.executor.memory"], "pipeline.E002"),
        ("REPLSITE_SPARK_CONF", {"executor.memory": "4g"}, "pipeline.E002"),
        ("REPLSITE_SPARK_CONF", {"spark.cores.max": 4}, "pipeline.E002"),
        ("REPLSITE_SPARK_EXECUTOR_SECONDS", 0, "pipeline.E003"),
        ("REPLSITE_SPARK_EXECUTOR_SECONDS", 10_000.0, "pipeline.E003"),
        ("REPLSITE_JOB_HISTORY_DAYS", -1.0, "pipeline.E003"),
        ("REPLSITE_JOB_HISTORY_DAYS", float("nan"), "pipeline.E003"),
        ("REPLSITE_JOB_HISTORY_COUNT", -1, "pipeline.E003"),
        ("REPLSITE_JOB_HISTORY_COUNT", 10**9, "pipeline.E003"),
        ("REPLSITE_SPARK_PAGE_PORT", 80, "pipeline.E003"),
        ("REPLSITE_SPARK_PAGE_PORT", 65_536, "pipeline.E003"),
    ],
)
def test_what_spark_would_refuse_is_refused_before(settings, name, value, expected):
    setattr(settings, name, value)
    assert told() == [expected]


def test_a_cluster_and_its_settings_are_well(settings):
    settings.REPLSITE_SPARK_MASTER = "spark://10.0.0.1:7077"
    settings.REPLSITE_SPARK_CONF = {"spark.executor.memory": "4g"}
    settings.REPLSITE_SPARK_PAGE_PORT = 4040
    assert told() == []


def commands_with_a_master() -> list[str]:
    """Names of our commands that take ``--master``."""
    names = [name for name, app in get_commands().items() if app in ("pipeline", "events", "streams", "state")]
    parsers = {name: load_command_class(get_commands()[name], name).create_parser("manage.py", name) for name in names}
    return sorted(name for name, parser in parsers.items() if "--master" in parser.format_help())


def test_every_command_refuses_what_is_no_master_before_it_begins():
    needed = {"import_events": ["x.jsonl"], "pipeline": ["run"], "check_room": ["!r:a"], "archive": ["!r:a", "x"]}
    names = commands_with_a_master()
    assert {"import_events", "pipeline", "check_room"} <= set(names)
    for name in names:
        with pytest.raises(CommandError, match="is no Spark master"):
            call_command(name, *needed.get(name, ["x"]), "--master", "localhost:7077")
