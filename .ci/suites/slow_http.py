#!/usr/bin/env python3
"""Runs slowhttptest against the server: slow headers, slow bodies and slow reads, all at the same time.

Usage: slow_http.py SECONDS. Each attack has 80 connections, so that all together stay below the limit of connections per network
(512): the attacks come from the same address as the requests of the user who must not notice them. That user clones, publishes
an event and reads a page, again and again until the attacks end.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from maintainer import Maintainer
from results import Results

ORIGIN = os.environ["GRASPD_ORIGIN"]
SECONDS = int(sys.argv[1])
CONNECTIONS = 80
# A request of the user may take this long.
USER_TIMEOUT_SECS = 5


def attacks(repository: str) -> dict[str, list[str]]:
    """Returns the options of slowhttptest for each attack."""
    push = ["-t", "POST", "-f", "application/x-git-receive-pack-request"]
    fetch = ["-t", "POST", "-f", "application/x-git-upload-pack-request"]
    slow_read = ["-X", "-w", "1", "-y", "16", "-n", "2", "-z", "1", "-k", "3"]
    return {
        "slow headers, /": ["-H", "-i", "2", "-u", f"{ORIGIN}/"],
        "slow body, push": ["-B", "-i", "2", "-s", "8192", *push, "-u", f"{repository}/git-receive-pack"],
        "slow body, fetch": ["-B", "-i", "2", "-s", "8192", *fetch, "-u", f"{repository}/git-upload-pack"],
        "slow read, /": [*slow_read, "-u", f"{ORIGIN}/"],
        "slow read, refs": [*slow_read, "-u", f"{repository}/info/refs?service=git-upload-pack"],
    }


def run_attack(options: list[str]) -> subprocess.Popen:
    """Starts slowhttptest. Its report goes to standard output."""
    common = ["-c", str(CONNECTIONS), "-r", "40", "-l", str(SECONDS), "-p", str(USER_TIMEOUT_SECS), "-v", "1"]
    return subprocess.Popen(
        ["slowhttptest", *common, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )


class User:
    """A user who has nothing to do with the attacks."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.repository = Maintainer(ORIGIN, "slow")
        work = folder / "work"
        environment = {f"GIT_{role}_{name}": "test" for role in ("AUTHOR", "COMMITTER") for name in ("NAME", "EMAIL")}
        os.environ.update(environment)
        self.git("init", "--quiet", "--initial-branch=main", str(work))
        self.git("-C", str(work), "commit", "--quiet", "--allow-empty", "--message", "first")
        oid = self.git("-C", str(work), "rev-parse", "HEAD")
        self.repository.announce()
        self.repository.declare({"refs/heads/main": oid})
        self.git("-C", str(work), "push", "--quiet", self.repository.url, "main")
        self.rounds = 0

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], check=True, timeout=USER_TIMEOUT_SECS, stdout=subprocess.PIPE, text=True
        )
        return done.stdout.strip()

    def run_round(self) -> None:
        """Reads a page, clones, and publishes an issue; each must end in time."""
        self.rounds += 1
        with urllib.request.urlopen(f"{ORIGIN}/", timeout=USER_TIMEOUT_SECS) as response:
            assert response.status == 200
        self.git("clone", "--quiet", self.repository.url, str(self.folder / f"clone{self.rounds}"))
        coordinate = f"30617:{self.repository.keys.public_key().to_hex()}:slow"
        self.repository.publish(self.repository.sign(1621, [["a", coordinate]], f"issue {self.rounds}"))


def check_report(report: str) -> None:
    """Checks that the probes of slowhttptest were answered: it prints the state of the service every five seconds."""
    states = re.findall(r"service available: *\x1b?\[?[0-9;m]*(YES|NO)", report)
    assert states and "NO" not in states, f"{states}: {report[-1500:]}"
    connected = re.findall(r"connected: *(\d+)", report)
    assert any(int(number) > 0 for number in connected) or "closed" in report, report[-1500:]


def main() -> None:
    lines = subprocess.run(["slowhttptest", "-h"], capture_output=True, text=True, check=False)
    version = re.search(r"version ([0-9.]+)", lines.stdout + lines.stderr)
    results = Results({"slowhttptest": version[1] if version else "unknown"})
    with tempfile.TemporaryDirectory() as folder:
        user = User(pathlib.Path(folder))
        processes = {name: run_attack(options) for name, options in attacks(user.repository.url).items()}
        start = time.monotonic()

        def rounds() -> None:
            while any(process.poll() is None for process in processes.values()):
                user.run_round()
                assert time.monotonic() - start < SECONDS + 60, "slowhttptest does not end"

        results.run("the requests of another user are answered meanwhile", rounds)
        for name, process in processes.items():
            report = re.sub(r"\x1b\[[0-9;]*m", "", process.communicate(timeout=SECONDS + 60)[0])
            print(f"== {name}\n{report}")
            results.run(name, lambda report=report: check_report(report))
        print(f"rounds of the user: {user.rounds}")
        results.run("the server works afterwards", user.run_round)


main()
