"""Files and folders for the history of rooms."""

import os
import subprocess
import sys
from pathlib import Path

from pipeline.private_files import open_new, remove_folder
from tests.support.waiting import DEADLINE_SECONDS

# As late Spark tasks do: files in the folder, until it is gone.
LATE_TASK = """
import sys
from pathlib import Path
from pipeline.private_files import open_new

folder, number = Path(sys.argv[1]), 0
print("writes", flush=True)
try:
    while True:
        open_new(folder / f"{number}.parquet").close()
        number += 1
except FileNotFoundError:
    print(number)
"""


def test_a_folder_goes_while_others_still_write_in_it(tmp_path):
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = [sys.executable, "-c", LATE_TASK, folder]
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as late:
            assert late.stdout is not None and late.stdout.readline() == "writes\n"
            while len(list(folder.iterdir())) < 50:
                pass
            remove_folder(folder)
            assert not folder.exists()
            assert int(late.communicate(timeout=DEADLINE_SECONDS)[0]) >= 50


def test_a_new_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old content")
    path.chmod(0o644)
    with open_new(path) as file:
        file.write(b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
