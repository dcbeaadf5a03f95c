#!/usr/bin/env python3
"""Runs a command with a graspd of its own: server.py PROGRAM [NAME=VALUE…] -- COMMAND [ARGUMENT…]

The server listens on a free port of the loopback interface and keeps its data in a temporary folder. NAME is a setting
without NGIT_. The command finds the address of the server in GRASPD_ORIGIN (http://127.0.0.1:PORT).
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

START_TIMEOUT_SECS = 30
STOP_TIMEOUT_SECS = 30


def wait_for_address(server: subprocess.Popen, output: pathlib.Path) -> str:
    """Returns host and port of the server, which prints them when it has started."""
    deadline = time.monotonic() + START_TIMEOUT_SECS
    while time.monotonic() < deadline and server.poll() is None:
        found = re.search(r"^ *relay +ws://(\S+?)/?$", output.read_text(), re.MULTILINE)
        if found:
            return found[1]
        time.sleep(0.05)
    raise SystemExit(f"graspd did not start:\n{output.read_text()}")


def main() -> int:
    split = sys.argv.index("--")
    program, settings, command = sys.argv[1], sys.argv[2:split], sys.argv[split + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, "output")
        environment = {
            "PATH": os.environ["PATH"],
            "NGIT_BIND_ADDRESS": "127.0.0.1:0",
            "NGIT_LOG_LEVEL": "warn",
            "NGIT_SYNC_ENABLE": "false",
        }
        environment.update(f"NGIT_{setting}".split("=", 1) for setting in settings)
        with output.open("wb") as log:
            server = subprocess.Popen([program], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            address = wait_for_address(server, output)
            status = subprocess.call(command, env=os.environ | {"GRASPD_ORIGIN": f"http://{address}"})
            if server.poll() is not None:
                print(f"graspd ended with {server.returncode} during the suite", file=sys.stderr)
                status = status or 1
        finally:
            server.terminate()
            try:
                server.wait(STOP_TIMEOUT_SECS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
                print("graspd did not stop", file=sys.stderr)
        if status:
            print(f"output of graspd:\n{output.read_text()[-4000:]}", file=sys.stderr)
        return status


sys.exit(main())
