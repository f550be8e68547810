"""All our commands are alike: each says what it does, shows examples that its parser takes, and ends with the same statuses."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class

from streams.jobs.command import command_lines
from streams.runtime.command_line import EXIT_STATUS, SiteCommand, service_begins
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS

ROOMS = ("replsite", "pipeline", "events", "state", "streams")
OURS = sorted(name for name, app in get_commands().items() if app in ROOMS)
#: Commands that report nothing, or work until they are told to stop: they have no ``--json``.
SILENT = {"append", "migrate", "pipeline", "runhandlers", "runjobs", "runreplication", "serve"}
#: Each takes from 0.2 s to 2 s.
SLOW = (
    "pandas", "numpy", "pyarrow", "pyspark", "adbc_driver_manager", "daphne", "twisted.internet.reactor",
    # Ours: all kinds of job, what appends and maintenance import.
    "pipeline.operations", "events.operations.purge_history", "streams.operations", "events.persist.batch",
)  # fmt: skip
#: Arguments that nobody can use, besides an option that is not there.
FOLLOW = "follow tcp://127.0.0.1:1"
UNUSABLE = [
    "append nosuchstream --count 1",
    "append caches --count many",
    "append caches --count 1 --batch=0",
    "append caches --count 1 --batch=1000001",
    "append caches --count 1 --threads=501",
    "append caches --count 1 --rate=-1",
    "append caches --count 1 --rate=nan",
    "append caches --count 1 --instance='two words'",
    "censor --limit 0",
    "censor --limit -3",
    "censor --older-than yesterday",
    "check_room",
    "check_room !a:b --master yarrn",
    "compress_state",
    "compress_state !a:b --all",
    "compress_state !a:b --least-saving 101",
    "explain_visibility @bob:example.org",
    "export",
    "follow nowhere",
    "follow redis://127.0.0.1:6379/x",
    "follow 127.0.0.1:1",
    "follow http://127.0.0.1:1",
    f"{FOLLOW} --from caches",
    f"{FOLLOW} --from nonsense=5",
    f"{FOLLOW} --until nonsense=5",
    f"{FOLLOW} --streams caches,nonsense",
    f"{FOLLOW} --streams events --until caches=5",
    f"{FOLLOW} --catch-up http",
    f"{FOLLOW} --server-name other --catch-up table",
    f"{FOLLOW} --server-name 'two\nlines'",
    f"{FOLLOW} --record 'two words'",
    f"{FOLLOW} --name 'two\nlines'",
    f"{FOLLOW} --name {'x' * 20_000}",
    f"{FOLLOW} --name \udcff",
    f"{FOLLOW} --view sideways",
    *(f"{FOLLOW} --timeout={seconds}" for seconds in ("nan", "inf", "0", "-1")),
    "import_events",
    "jobs show first",
    "parked retry",
    "parked drop billing",
    "pipeline stop",
    "pipeline run --master yarrn",
    "purge",
    "purge nothing",
    "purge stream caches",
    "purge stream caches --keep some",
    "purge history !a:b",
    "restore",
    "resync reader",
    "room",
    "room check",
    "room check !a:b --master yarrn",
    "room compress !a:b --all",
    "room export",
    "room mend",
    "room purge !a:b",
    "room purge !a:b --whole --before $e",
    "room purge !a:b --whole --delete-local",
    "room purge !a:b --before $e --force",
    "room restore",
    "runreplication --bind nowhere",
    "serve --http nowhere",
    "state_at",
    "streams explode",
    "streams retire",
    "timeline",
]


@pytest.mark.parametrize("name", OURS)
def test_words_that_are_no_utf8_are_unusable_arguments(name, capsys):
    with pytest.raises(SystemExit) as ended:
        command(name).run_from_argv(["manage.py", name, "!x\udcff:a.test"])
    assert ended.value.code == 2 and "is no UTF-8" in capsys.readouterr().err


def command(name: str) -> SiteCommand:
    found = load_command_class(get_commands()[name], name)
    assert isinstance(found, SiteCommand), f"{name}: derive it from streams.runtime.command_line.SiteCommand"
    return found


def parser_of(name: str) -> argparse.ArgumentParser:
    return command(name).create_parser("manage.py", name)


def own_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of the command and of its subcommands; Django's own left out."""
    django = {action.dest for action in SiteCommand().create_parser("manage.py", "none")._actions}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from own_actions(sub)
        elif action.dest not in django:
            yield action


def typed_words(typed: str) -> list[str]:
    """What the command gets of an example: nothing of what the shell does."""
    return [word for word in re.split(r" [|<>] ", typed)[:1] for word in shlex.split(word)]


EXAMPLES = [(name, typed) for name in OURS for typed, _ in command(name).help_examples()]


def test_all_commands_of_the_rooms_are_looked_at() -> None:
    assert len(OURS) >= 27 and {"streams", "purge", "import_events", "health"} <= set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_help_tells_what_it_does_with_examples_and_the_exit_status(name: str) -> None:
    text = parser_of(name).format_help()
    assert "examples:\n  manage.py " in text and EXIT_STATUS in text
    assert command(name).help[0].isupper() and command(name).help.endswith(".")


@pytest.mark.parametrize("name", OURS)
def test_every_example_says_what_it_does(name: str) -> None:
    told = command(name).help_examples()
    assert told and all(typed.split()[0] == name and does for typed, does in told)


@pytest.mark.parametrize(("name", "typed"), EXAMPLES, ids=[typed for _, typed in EXAMPLES])
def test_every_example_is_accepted_by_the_parser(name: str, typed: str) -> None:
    _, *arguments = typed_words(typed)
    assert parser_of(name).parse_args(arguments)


@pytest.mark.parametrize("what", ["purge", "resync", "room"])
def test_every_subject_of_maintenance_has_an_example_in_its_own_help(what: str) -> None:
    for name in command_lines(what):
        with pytest.raises(SystemExit) as ended:
            parser_of(what).parse_args([name, "--help"])
        assert ended.value.code in (0, None)


@pytest.mark.parametrize("name", OURS)
def test_every_option_says_what_it_is(name: str) -> None:
    assert [action.dest for action in own_actions(parser_of(name)) if not action.help] == []


@pytest.mark.parametrize("name", sorted(set(OURS) - SILENT))
def test_commands_that_report_do_it_in_json_too(name: str) -> None:
    assert any("--json" in action.option_strings for action in own_actions(parser_of(name)))


@pytest.mark.parametrize("name", sorted(SILENT & set(OURS)))
def test_the_list_of_silent_commands_is_right(name: str) -> None:
    assert not any("--json" in action.option_strings for action in own_actions(parser_of(name)))


@pytest.mark.parametrize(
    "typed", [*(f"{name} --no-such-option" for name in OURS), *UNUSABLE], ids=lambda typed: ascii(typed[:60])
)
def test_unusable_arguments_end_with_status_two(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *arguments = shlex.split(typed)
    with pytest.raises(SystemExit) as ended:
        command(name).run_from_argv(["manage.py", name, *arguments])
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == ""
    assert "Traceback" not in told.err and told.err.strip()


def test_an_example_that_is_too_long_has_its_words_below_it() -> None:
    class Long(SiteCommand):
        examples = (("short", "few"), ("long " + "x" * 80, "many"))

    assert Long().epilog().splitlines()[1:4] == [
        "  manage.py short   few",
        "  manage.py long " + "x" * 80,
        "      many",
    ]


def test_paragraphs_are_filled_and_examples_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wordy(SiteCommand):
        help = "word " * 60
        examples = (("wordy", "keeps   its   gaps"),)

    monkeypatch.setenv("COLUMNS", "80")
    text = Wordy().create_parser("manage.py", "wordy").format_help()
    assert max(map(len, text.splitlines())) <= 80
    assert "  manage.py wordy   keeps   its   gaps" in text


def printed(rows: list[list[object]]) -> str:
    out = io.StringIO()
    SiteCommand(stdout=out).print_table(["event", "is"], rows)
    return out.getvalue()


def test_long_words_are_whole_where_no_terminal_is() -> None:
    assert "$" + "x" * 400 in printed([["$" + "x" * 400, True]])


def test_nothing_in_a_table_is_markup_or_moves_the_cursor() -> None:
    text = printed([["[bold]a[/bold]", "\x1b[2J"]])
    assert "[bold]a[/bold]" in text and "\x1b" not in text and r"\x1b[2J" in text


HOSTILE = "a\x1b[2J\x9b31m\r\u202e\U000e0001\ud800\u00fc"


def test_what_a_command_writes_cannot_steer_a_terminal() -> None:
    out, err = io.StringIO(), io.StringIO()
    made = SiteCommand(stdout=out, stderr=err)
    made.stdout.write(f"\t{HOSTILE}\nnext")
    made.stdout.write(json.dumps([HOSTILE], ensure_ascii=False))
    made.stderr.write(HOSTILE)
    made.stderr.write("ours", lambda text: f"\x1b[31m{text}\x1b[0m")
    shown = r"a\u001b[2J\u009b31m\u000d\u202e\udb40\udc01\ud800" + "\u00fc"
    first, second, line = out.getvalue().splitlines()
    assert (first, second) == (f"\t{shown}", "next")
    assert json.loads(line) == [HOSTILE]
    assert err.getvalue() == f"{shown}\n\x1b[31mours\n\x1b[0m"


def test_the_error_that_ends_a_command_cannot_either(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(SiteCommand):
        requires_system_checks = ()

        def handle(self, *args: object, **options: object) -> None:
            raise CommandError(HOSTILE)

    with pytest.raises(SystemExit):
        Failing().run_from_argv(["manage.py", "failing"])
    assert r"CommandError: a\u001b[2J" in (said := capsys.readouterr().err) and said.rstrip("\n").isprintable()


def test_cells_say_yes_no_and_nothing() -> None:
    row = printed([[True, False], [None, 7]]).splitlines()[3:5]
    assert [line.strip("│").replace(" ", "").split("│") for line in row] == [["yes", "no"], ["", "7"]]


def test_without_rich_a_table_has_aligned_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert printed([["[a]\x1b", True], ["longer", None]]).splitlines() == ["event    is", r"[a]\x1b  yes", "longer"]


# --- services -------------------------------------------------------------------------------------------------------------


SERVICES = {"follow", "mirror", "pipeline", "runhandlers", "runjobs", "runreplication", "serve"}


def parsed(typed: str) -> tuple[SiteCommand, dict]:
    name, *rest = shlex.split(typed)
    found = command(name)
    return found, vars(found.create_parser("manage.py", name).parse_args(rest))


@pytest.mark.parametrize("name", OURS)
def test_what_works_until_it_is_told_to_end_is_a_service(name):
    typed = {
        "follow": "follow tcp://127.0.0.1:1",
        "mirror": "mirror postgresql:///s tcp://127.0.0.1:1",
        "pipeline": "pipeline run",
    }
    typed = typed.get(name, name)
    if name in SERVICES:
        found, options = parsed(typed)
        assert found.is_service(options)
    else:
        assert not command(name).is_service({})


@pytest.mark.parametrize(
    "typed",
    ["follow tcp://127.0.0.1:1 --until events=5", "follow tcp://127.0.0.1:1 --timeout 5", "pipeline run --until-idle 0",
     "runhandlers --once", "runjobs --once", "mirror postgresql:///s tcp://127.0.0.1:1 --once"],
)  # fmt: skip
def test_a_run_with_an_end_of_its_own_is_none(typed):
    found, options = parsed(typed)
    assert not found.is_service(options)


class _Fleeting(SiteCommand):
    """What ``handle`` saw."""

    requires_system_checks = ()
    asked_for = False
    began: list[object]

    def is_service(self, options):
        return self.asked_for

    def handle(self, *args, **options):
        return str(len(self.began))


@pytest.mark.parametrize("asked_for", [True, False])
def test_a_service_says_that_it_begins_before_it_works(asked_for):
    begun = _Fleeting(stdout=io.StringIO())
    begun.asked_for, begun.began = asked_for, []

    def hear(sender, **_):
        begun.began.append(sender)

    service_begins.connect(hear)
    try:
        assert call_command(begun) == str(int(asked_for))
    finally:
        service_begins.disconnect(hear)
    assert begun.began == [_Fleeting] * asked_for


def test_commands_start_without_what_is_slow_to_import():
    code = f"import sys, django; django.setup(); print(*(name for name in {SLOW!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_SECONDS,
        check=False,
    )
    assert (done.stdout.split(), done.returncode) == ([], 0), done.stderr
