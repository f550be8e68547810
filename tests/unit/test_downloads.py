"""What set-up downloads is tried three times, and its last failure has a reason; uv is given pip's own settings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.session import PROJECT

#: Pauses are told and not made.
SCENE = """
source {project}/script/_environment
PROJECT={folder} DOWNLOAD_LOG={folder}/.venv/download.log
cd {folder}
sleep() {{ echo "pause $1"; }}
say() {{ echo "$*"; }}
_as_root() {{ [ "$1" = mkdir ] || "$@"; }}
{scene}
"""
#: In the place of the machine's own: nothing is installed.
APT = """#!/bin/sh
case "$*" in
  update) touch new; exit ;;
  *--simulate*) [ -z "$UNKNOWN" ]; exit ;;
  *$UNKNOWN*) [ -z "$UNKNOWN" ] || { echo "E: Unable to locate package $UNKNOWN"; exit 100; } ;;
esac
[ -z "$STALE" ] || [ -e new ] || { echo "E: Failed to fetch it"; exit 100; }
"""


def run(folder: Path, scene: str, **environment: str) -> list[str]:
    (folder / ".venv").mkdir(exist_ok=True)
    apt = folder / "bin" / "apt-get"
    apt.parent.mkdir(exist_ok=True)
    apt.write_text(APT)
    apt.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", SCENE.format(project=PROJECT, folder=folder, scene=scene)],
        env={"PATH": f"{apt.parent}:{os.environ['PATH']}", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_what_fails_twice_is_had_at_the_third_time(tmp_path):
    scene = """
    load() { echo x >>tries; echo "ERROR: broken $(wc -l <tries)" >"$DOWNLOAD_LOG"; [ "$(wc -l <tries)" = 3 ]; }
    _three_times pip load && echo had
    """
    assert run(tmp_path, scene) == [
        "  pip: ERROR: broken 1; once more in 5 s", "pause 5", "  pip: ERROR: broken 2; once more in 10 s", "pause 10", "had"
    ]  # fmt: skip


def test_what_fails_three_times_is_given_up_with_the_last_reason_and_its_tool_is_then_tried_once(tmp_path):
    scene = """
    load() { echo x >>tries; echo "E: broken $(wc -l <tries)" >"$DOWNLOAD_LOG"; return 1; }
    _three_times "apt zsh" load || _three_times "apt jq" load || _three_times pip load || echo "all failed"
    """
    told = run(tmp_path, scene)
    assert told[4:6] == ["  apt zsh failed: E: broken 3", "  apt jq failed: E: broken 4"]
    assert told[-2:] == ["  pip failed: E: broken 7", "all failed"]


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(refused)'\nERROR: No matching distribution for x",
            "ERROR: No matching distribution for x (connection broken by 'NewConnectionError(refused)')",
        ),
        (
            "E: Failed to fetch http://a/b.deb  404  Not Found\nE: Unable to fetch some archives",
            "E: Unable to fetch some archives (Failed to fetch http://a/b.deb  404  Not Found)",
        ),
        ("error: Request failed\n  cause: dns error\n", "cause: dns error"),
        ("just this", "just this"),
    ],
)
def test_the_reason_is_the_error_and_what_broke(tmp_path, log, reason):
    assert run(tmp_path, f'cat >"$DOWNLOAD_LOG" <<"LOG"\n{log}\nLOG\n_reason') == [reason]


def test_packages_that_the_archive_no_longer_has_are_asked_for_again_with_new_lists(tmp_path):
    told = run(tmp_path, "_apt_install zsh && echo had", STALE="yes")
    assert told == ["  apt zsh: E: Failed to fetch it; once more in 5 s", "pause 5", "  apt-get update", "had"]


def test_a_package_that_exists_nowhere_is_not_waited_for_and_keeps_no_other_away(tmp_path):
    scene = """
    wanted() { _apt_install "$@" || for package; do _apt_install $package && echo "$package had"; done; }
    wanted jq nowhere || true
    """
    told = run(tmp_path, scene, UNKNOWN="nowhere")
    assert [line for line in told if "pause" in line] == []
    assert [line for line in told if "update" not in line] == [
        "  apt jq nowhere failed: E: Unable to locate package nowhere",
        "jq had",
        "  apt nowhere failed: E: Unable to locate package nowhere",
    ]


def test_pip_installs_what_uv_could_not(tmp_path):
    scene = """
    echo "uv==1.2" >requirements.txt
    _uv_once() { echo "error: no such index" >"$DOWNLOAD_LOG"; return 1; }
    _pip() { echo "pip $*"; }
    _pins .venv/bin/python
    """
    told = run(tmp_path, scene)
    assert told[0] == "pip install uv==1.2"
    assert told[-3:] == [
        "  uv failed: error: no such index", "  with pip", "pip --python .venv/bin/python install -r requirements.txt"
    ]  # fmt: skip


SETTINGS_OF_PIP = r"""
:env:.find-links='/wheels /more'
global.cert='/certificates'
global.constraint='/constraints'
global.extra-index-url='https://a/simple\nfile:///b/simple'
global.find-links='/others'
global.index-url='https://index/simple'
install.cert='/of-install'
"""


def test_settings_of_pip_are_those_of_uv(tmp_path):
    scene = f'python3 -c "$_SETTINGS_OF_UV" <<"PIP"\n{SETTINGS_OF_PIP}\nPIP'
    assert run(tmp_path, scene) == [
        "UV_INDEX_STRATEGY=unsafe-best-match", "UV_DEFAULT_INDEX=https://index/simple",
        "UV_INDEX=https://a/simple file:///b/simple", "UV_FIND_LINKS=/wheels,/more", "SSL_CERT_FILE=/of-install",
    ]  # fmt: skip
    assert "UV_INDEX" not in {line.partition("=")[0] for line in run(tmp_path, scene, UV_INDEX="https://my-own")}
