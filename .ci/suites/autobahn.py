#!/usr/bin/env python3
"""Runs the fuzzing client of the Autobahn testsuite against an echo server: autobahn.py URL

AUTOBAHN_PYTHON is a Python 2.7 with the testsuite. The echo server is a test of the crate graspd, which runs this program.
Left out are 1.2.* (binary messages, whose content the relay does not keep), 9.* (messages up to 16 MiB, and speed) and 12.*, 13.*
(compression, which the relay does not offer).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from results import Results

EXCLUDED = ["1.2.*", "9.*", "12.*", "13.*"]
# Of the results that the testsuite knows, these are not failures. NON-STRICT is listed as a known difference.
PASSED = ("OK", "INFORMATIONAL")
TIMEOUT_SECS = 600


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        specification = {
            "outdir": f"{folder}/reports",
            "servers": [{"agent": "graspd", "url": sys.argv[1]}],
            "cases": ["*"],
            "exclude-cases": EXCLUDED,
            "exclude-agent-cases": {},
        }
        path = pathlib.Path(folder, "fuzzingclient.json")
        path.write_text(json.dumps(specification), encoding="utf-8")
        command = [os.environ["AUTOBAHN_PYTHON"], "-m", "autobahntestsuite.wstest", "-m", "fuzzingclient", "-s", str(path)]
        subprocess.run(command, check=True, timeout=TIMEOUT_SECS, cwd=folder)
        index = json.loads(pathlib.Path(folder, "reports", "index.json").read_text(encoding="utf-8"))["graspd"]
        results = Results({"autobahntestsuite": os.environ["AUTOBAHN_VERSION"]})
        for case, entry in sorted(index.items(), key=lambda item: [int(part) for part in item[0].split(".")]):
            report = json.loads(pathlib.Path(folder, "reports", entry["reportfile"]).read_text(encoding="utf-8"))
            seconds = entry["duration"] / 1000
            # How the connection ended is rated apart.
            for name, rating, text, seconds in (
                (case, entry["behavior"], report["result"], seconds),
                (f"{case} close", entry["behaviorClose"], report["resultClose"], 0),
            ):
                is_passed = rating in PASSED
                results.add(name, "passed" if is_passed else "failed", "" if is_passed else f"{rating}: {text}", seconds)


main()
