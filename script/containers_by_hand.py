"""Runs the container files on a bare Debian, with chroot and network namespaces: no container runtime is needed.

    python script/containers_by_hand.py ROOT [PYTHON]

ROOT is a folder with Debian bookworm (debootstrap) in which apt and pip work. It stands for both base images: PYTHON, a
folder with a Python, is copied to its /usr/local, and Debian's PostgreSQL is installed. Needs root. Each layer and each
container is an overlay beside ROOT, and each container has an address, PID 1 and mounts of its own.

Each RUN, HEALTHCHECK, ENTRYPOINT and command does its work, in the order of ``depends_on``. Prints a line for each, and ends
with an error at the first that fails.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[1]
FOLDER = PROJECT / "docs/deployment/container"
GIVEN = {"POSTGRES_PASSWORD": "4a" * 24, "REPLSITE_SECRET_KEY": "k+/=" * 16}
INSTALL = "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq; apt-get install -qqy >/dev/null"
#: The image of PostgreSQL in the words of Debian: what its entry point does, with the same variables.
POSTGRES_START = """
export PATH=$(echo /usr/lib/postgresql/*/bin):$PATH PGDATA=/var/lib/postgresql/data
mkdir -p $PGDATA /run/postgresql && chown postgres $PGDATA /run/postgresql
[ -e $PGDATA/PG_VERSION ] || {
    printf %s "$POSTGRES_PASSWORD" > /tmp/password
    setpriv --reuid postgres --clear-groups initdb -E UTF8 -A scram-sha-256 --pwfile /tmp/password -U "$POSTGRES_USER"
    echo "host all all all scram-sha-256" >> $PGDATA/pg_hba.conf
    echo 'CREATE DATABASE replsite' | setpriv --reuid postgres --clear-groups postgres --single -j postgres
}
exec setpriv --reuid postgres --regid postgres --clear-groups postgres -c listen_addresses=*
"""


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], check=True, text=True, **options)


def say(what: str, since: float) -> None:
    print(f"{time.monotonic() - since:6.1f} s  {what}", flush=True)


def instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (FOLDER / "Containerfile").read_text(), flags=re.M))
    yield from (tuple(line.split(" ", 1)) for line in text.splitlines() if line)  # type: ignore[misc]


# --- the image ----------------------------------------------------------------------------------------------------------


class Layers:
    """Overlay folders below ``work``. Unmounted at the end."""

    def __init__(self, work: Path, stack: ExitStack) -> None:
        self.work, self._stack = work, stack

    def over(self, lower: Path, name: str) -> Path:
        upper, inner, top = (self.work / part / name for part in ("upper", "inner", "top"))
        for folder in (upper, inner, top):
            folder.mkdir(parents=True)
        run("mount", "-t", "overlay", name, "-o", f"lowerdir={lower},upperdir={upper},workdir={inner}", top)
        self._stack.callback(run, "umount", "-R", "-l", top)
        for place in ("proc", "dev"):
            (top / place).mkdir(exist_ok=True)
            self.bind(Path("/", place), top / place)
        return top

    def bind(self, source: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        run("mount", "--rbind", source, target)
        run("mount", "--make-rslave", target)


def context(target: Path) -> None:
    """Copies what the ignore file lets into the image, of the files that git has."""
    lines = (FOLDER / "containerignore").read_text().split()
    let_in = [line.removeprefix("!") for line in lines if line.startswith("!")]
    names = run("git", "ls-files", "--", *let_in, cwd=PROJECT, capture_output=True).stdout.splitlines()
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, target / name, follow_symlinks=False)


class Image:
    """What the Containerfile makes: a folder, and how its programs run."""

    def __init__(self, layers: Layers, base: Path, begun: float) -> None:
        self.entry, self.check = [], []  # type: ignore[var-annotated]
        stages: dict[str, Path] = {}
        arguments: dict[str, str] = {}
        for word, rest in instructions():
            if word == "FROM":
                name = rest.partition(" AS ")[2] or "image"
                self.root = stages[name] = layers.over(base, name)
                self.user, self.folder = "0", "/"
                self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
                arguments = {key: value for key, value in os.environ.items() if re.match("PIP_(?!FIND)|SSL_|http", key)}
            elif word == "ARG":
                arguments |= [rest.split("=", 1)]  # type: ignore[arg-type]
            elif word == "ENV":
                expanded = rest.replace("$PATH", self.environment["PATH"])
                self.environment |= dict(pair.split("=", 1) for pair in shlex.split(expanded))
            elif word == "WORKDIR":
                self.folder = rest
                (self.root / rest[1:]).mkdir(parents=True, exist_ok=True)
            elif word == "COPY" and rest == ". .":
                context(self.root / self.folder[1:])
            elif word == "COPY":
                stage, source, target = rest.removeprefix("--from=").split()
                run("cp", "-a", stages[stage] / source[1:], self.root / target[1:])
            elif word == "USER":
                self.user = rest
            elif word == "RUN":
                run(*self.within(self.root, ["/bin/sh", "-c", rest], arguments))
            elif word == "ENTRYPOINT":
                self.entry = yaml.safe_load(rest)
            elif word == "HEALTHCHECK":
                self.check = yaml.safe_load(rest[rest.index("[") :])
            say(f"{word} {rest}"[:110], begun)

    def within(self, root: Path, command: Sequence[str], more: Mapping[str, str]) -> list[str]:
        values = {"HOME": "/root" if self.user == "0" else "/var/lib/replsite", **self.environment, **more}
        named = [f"{key}={value}" for key, value in values.items()]
        words = ["env", "-C", self.folder, "-i", *named, *command]
        return ["chroot", f"--userspec={self.user}:{self.user}", str(root), *words]


# --- the containers -----------------------------------------------------------------------------------------------------


def filled_in(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: filled_in(one) for key, one in value.items()}
    if isinstance(value, list):
        return [filled_in(one) for one in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", lambda m: GIVEN.get(m[1], m[3] if m[2] == "-" else ""), value)


class Container:
    """A service of the compose file."""

    def __init__(self, name: str, service: Mapping[str, Any], number: int, net: str) -> None:
        self.name, self.service, self.net = name, service, f"replsite-{name}"
        self.address = f"{net}.{number}"
        self.process: subprocess.Popen[bytes]
        self.root: Path
        self.image: Image

    def plug(self, stack: ExitStack, bridge: str) -> None:
        run("ip", "netns", "add", self.net)
        stack.callback(run, "ip", "netns", "del", self.net)
        link = f"rs{self.address.rpartition('.')[2]}"
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.net)
        run("ip", "link", "set", link, "master", bridge, "up")
        for line in (f"addr add {self.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            run("ip", "-n", self.net, *line.split())

    def command(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
        more = {**self.service.get("environment", {}), **(environment or {})}
        return ["ip", "netns", "exec", self.net, *self.image.within(self.root, command, more)]

    def start(self, log: Path) -> None:
        init = ["/sbin/docker-init", "--"] if self.service.get("init") else []
        words = self.command([*init, *self.image.entry, *self.service.get("command", ())])
        chroot = words.index("chroot")
        alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc=" + str(self.root / "proc")]
        with log.open("ab") as file:
            self.process = subprocess.Popen([*words[:chroot], *alone, *words[chroot:]], stdout=file, stderr=file)

    def healthy(self) -> bool:
        test = self.service.get("healthcheck", {}).get("test", ["CMD", *self.image.check])
        return subprocess.run(self.command(test[1:]), capture_output=True, check=False).returncode == 0

    def first(self) -> int:
        """The process that is PID 1 in the container."""
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)

    def end(self) -> None:
        # Its PID 1, because a change of user cancels the signal at the end of the parent.
        if self.process.poll() is None:
            os.kill(self.first(), signal.SIGKILL)
            self.process.wait()

    def stop(self) -> float:
        """Stops it as a runtime does, which kills it after a time. Returns the seconds."""
        begun, grace = time.monotonic(), float(self.service.get("stop_grace_period", "10s").rstrip("s"))
        os.kill(self.first(), getattr(signal, self.service.get("stop_signal", "SIGTERM")))
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{self.name} goes on for {grace:.0f} s after its signal: it would be killed") from None
        return time.monotonic() - begun


def until(check: Any, what: str, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.5)


class Deployment:
    """The compose file: its network, its volumes and its containers."""

    def __init__(self, layers: Layers, image: Image, postgres: Image, stack: ExitStack, begun: float) -> None:
        content = yaml.safe_load((FOLDER / "compose.yaml").read_text())
        self._stack, self._begun, self._logs = stack, begun, layers.work / "logs"
        self._logs.mkdir()
        net = content["networks"]["inside"]["ipam"]["config"][0]["subnet"].rpartition(".")[0]
        run("ip", "link", "add", "replsite0", "type", "bridge")
        stack.callback(run, "ip", "link", "del", "replsite0")
        run("ip", "addr", "add", f"{net}.1/24", "dev", "replsite0")
        run("ip", "link", "set", "replsite0", "up")
        services = filled_in(content["services"])
        self._all = {name: Container(name, s, place, net) for place, (name, s) in enumerate(services.items(), 2)}
        hosts = "".join(f"{c.address} {name}\n" for name, c in self._all.items()) + "127.0.0.1 localhost\n"
        for name, container in self._all.items():
            container.image = image if container.service["image"] == "replsite" else postgres
            container.root = layers.over(container.image.root, f"{name}-files")
            (container.root / "etc/hosts").write_text(hosts)
            for volume in container.service.get("volumes", ()):
                self._put_in(container, layers, *volume.split(":"))
            container.plug(stack, "replsite0")

    def _put_in(self, container: Container, layers: Layers, volume: str, target: str) -> None:
        kept, place = layers.work / "volumes" / volume, container.root / target[1:]
        place.mkdir(parents=True, exist_ok=True)
        if not kept.exists():  # a new volume has what the image has there, and its owner
            kept.parent.mkdir(exist_ok=True)
            run("cp", "-a", place, kept)
        layers.bind(kept, place)

    def _start(self, name: str) -> None:
        self._all[name].start(self._logs / f"{name}.log")
        self._stack.callback(self._all[name].end)

    def start(self) -> None:
        """Starts each service when those that it depends on are healthy or done."""
        started: set[str] = set()
        while waiting := [name for name in self._all if name not in started]:
            name = next(one for one in waiting if set(self._all[one].service.get("depends_on", ())) <= started)
            container = self._all[name]
            self._start(name)
            started.add(name)
            if container.service.get("restart") == "no":
                if container.process.wait(120) != 0:
                    raise SystemExit((self._logs / f"{name}.log").read_text())
            elif not container.service.get("healthcheck", {}).get("disable"):
                until(container.healthy, f"{name} is healthy")
            say(f"{name}: {shlex.join(container.service.get('command', ['(its entry point)']))}"[:110], self._begun)

    def _manage(self, *words: str, **environment: str) -> str:
        command = self._all["serve-1"].command(["python", "manage.py", *words], environment)
        return run(*command, capture_output=True, timeout=120).stdout

    def use(self) -> None:
        """The commands of the page, and a follower of each server in another container."""
        account = ("--noinput", "--username", "ann", "--email", "ann@a.test")
        self._manage("createsuperuser", *account, DJANGO_SUPERUSER_PASSWORD="x" * 20)
        say("exec serve-1 python manage.py createsuperuser", self._begun)
        until(lambda: "writer-1" in self._manage("streams"), "streams shows writer-1")
        say("exec serve-1 python manage.py streams: shows writer-1", self._begun)
        for server in ("serve-1", "serve-2"):
            follow = ["timeout", "20", "python", "manage.py", "follow", f"tcp://{server}:9092"]
            done = subprocess.run(self._all["jobs"].command(follow), capture_output=True, text=True, check=False)
            if "caches" not in done.stdout:
                raise SystemExit(f"follow {server}: {done.stdout[-500:]} {done.stderr[-2000:]}")
            say(f"follow tcp://{server}:9092: {len(done.stdout.splitlines())} lines", self._begun)

    def kill_and_restart(self) -> None:
        """Kills processes, and starts them as ``restart: unless-stopped`` does."""
        for name in ("writer", "serve-1"):
            self._all[name].end()
            self._start(name)
        until(self._all["serve-1"].healthy, "serve-1 is healthy again")
        say("writer and serve-1 killed, started again", self._begun)
        self._all["postgres"].end()
        until(lambda: not self._all["serve-2"].healthy(), "serve-2 is not healthy without PostgreSQL")
        self._start("postgres")
        for name in ("postgres", "serve-1", "serve-2"):
            until(self._all[name].healthy, f"{name} is healthy again")
        say("postgres killed, started again: servers were unhealthy, and are healthy", self._begun)

    def stop(self) -> None:
        for name in ("writer", "jobs", "serve-2", "serve-1", "postgres"):
            container = self._all[name]
            if container.process.poll() is not None:
                raise SystemExit(f"{name} has ended: {(self._logs / f'{name}.log').read_text()[-3000:]}")
            seconds = container.stop()
            say(f"{name} stopped in {seconds:.1f} s with {container.process.returncode}", self._begun)


def base(layers: Layers, root: Path, name: str, commands: str, files: Path | None = None) -> Path:
    """The bare Debian with more in it. Kept for further runs."""
    kept = root.with_name(f"{root.name}.{name}")
    if not kept.exists():
        made = layers.over(root, name)
        if files is not None:
            run("cp", "-a", f"{files}/.", made / "usr/local/")
        run("chroot", made, "sh", "-euc", commands)
        run("cp", "-ax", made, kept)
    return kept


def main() -> None:
    root, begun = Path(sys.argv[1]).resolve(), time.monotonic()
    work = root.with_name(root.name + ".work")
    if work.exists():
        raise SystemExit(f"{work} is there: remove it")
    python = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with ExitStack() as stack:
        layers = Layers(work, stack)
        needed = f"{INSTALL} tini; cp /usr/bin/tini /sbin/docker-init; ldconfig; ln -sf python3 /usr/local/bin/python"
        with_python = base(layers, root, "python", needed, python)
        say("base: python", begun)
        postgres = object.__new__(Image)
        postgres.root = base(layers, root, "postgres", f"{INSTALL} postgresql")
        say("base: postgres", begun)
        postgres.user, postgres.folder, postgres.check = "0", "/", []
        postgres.entry = ["sh", "-euc", POSTGRES_START]
        postgres.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        deployment = Deployment(layers, Image(layers, with_python, begun), postgres, stack, begun)
        deployment.start()
        deployment.use()
        deployment.kill_and_restart()
        deployment.stop()
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
