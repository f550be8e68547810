"""Chooses the account that runs the server's programs.

PostgreSQL refuses to run as root. An ordinary user runs it under its own account. Root runs it as the owner of an
existing cluster or data folder, else as ``postgres``, else as ``nobody``.

Folders above the cluster or the programs may be closed to that account (``/root``, a private temporary folder). The
modes of these folders are not changed, because the folders belong to others. Instead, the child process gets the one
capability that lets it pass. The capabilities are tried one after the other.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from replsite.postgres.errors import BinariesMissing, FolderClosed

# Tried in this order: none; one that passes through closed folders; one that also runs programs whose own mode is
# closed (umask 077).
_CAPABILITIES = ("", "dac_read_search", "dac_override")


@dataclass(frozen=True, slots=True)
class Account:
    """An account to run programs as. With ``uid`` None, programs run as the caller."""

    uid: int | None = None
    gid: int | None = None
    capability: str = ""

    def command(self, *arguments: str | Path) -> list[str]:
        """Returns the command line that runs ``arguments`` as this account.

        The command starts one process, not two: ``setpriv`` replaces itself by the program.
        """
        words = [str(argument) for argument in arguments]
        if self.uid is None:
            return words
        prefix = ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"]
        if self.capability:
            # The programs find each other by access(2), which ignores the capability unless this securebit is set.
            prefix += [f"--inh-caps=+{self.capability}", f"--ambient-caps=+{self.capability}"]
            prefix += ["--securebits=+no_setuid_fixup"]
        return [*prefix, "--", *words]

    def chown(self, path: Path) -> None:
        """Makes the account the owner of a file or folder that the caller created."""
        if self.uid is not None:
            os.chown(path, self.uid, self.gid if self.gid is not None else -1)


def choose_account(folder: Path, programs: Path) -> Account:
    """Returns the account that can run ``programs`` on the server's ``folder``.

    Raises FolderClosed if no account can, and BinariesMissing if the caller is root and ``setpriv`` is missing.
    """
    if os.geteuid() != 0:
        return Account()
    if shutil.which("setpriv") is None:
        raise BinariesMissing(
            "As root the embedded PostgreSQL runs as another account, which needs the program setpriv (Debian package"
            " util-linux). Install it, run replsite as an ordinary user, or set DATABASE_URL."
        )
    uid, gid = _unprivileged_owner(folder)
    refusal = ""
    for capability in _CAPABILITIES:
        account = Account(uid, gid, capability)
        refusal = _refusal(account, folder, programs)
        if not refusal:
            return account
    raise FolderClosed(
        f"The account {_name(uid)} runs the embedded PostgreSQL for root and cannot use {programs} or {folder}:"
        f" {refusal}. Let it pass through the folders above (chmod o+x), choose another REPLSITE_DATA_DIR,"
        " or set DATABASE_URL."
    )


def _unprivileged_owner(folder: Path) -> tuple[int, int]:
    """Returns user and group of the owner of the cluster, or else of the folders around it.

    If root owns them, returns user and group of ``postgres``, or of ``nobody`` if there is no ``postgres``. Raises
    FolderClosed if neither account exists.
    """
    for path in (folder / "data", folder, folder.parent):
        if path.exists() and (owner := path.stat()).st_uid != 0:
            return owner.st_uid, owner.st_gid
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise FolderClosed(
        "PostgreSQL refuses to run as root and there is neither an account postgres nor nobody to run it as."
        " Add one, run replsite as an ordinary user, or set DATABASE_URL."
    )


def _refusal(account: Account, folder: Path, programs: Path) -> str:
    postgres = programs / "postgres"
    for attempt in (("ls", "-d", f"{folder}/."), ("test", "-x", postgres), (postgres, "--version")):
        done = subprocess.run(account.command(*attempt), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return done.stderr.strip() or "no permission"
    return ""


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
