"""Results of a suite: a file of JSON with one entry per case, which report.py compares with the known differences."""

import json
import os
import time
import traceback
from collections.abc import Callable


class Unsupported(Exception):
    """The client cannot do what the case needs."""


class Results:
    """Collects the results of one suite and writes them to the file that SUITE_RESULTS names."""

    def __init__(self, versions: dict[str, str]):
        self.versions = versions
        self.cases: list[dict] = []

    def add(self, case: str, result: str, detail: str = "", seconds: float = 0.0) -> None:
        """Adds a result: passed, failed or unsupported."""
        self.cases.append({"case": case, "result": result, "detail": detail, "seconds": round(seconds, 2)})
        self.write()

    def run(self, case: str, function: Callable[[], None]) -> None:
        """Runs a case. An exception is a failure."""
        start = time.monotonic()
        try:
            function()
            result, detail = "passed", ""
        except Unsupported as error:
            result, detail = "unsupported", str(error)
        except Exception:  # pylint: disable=broad-except
            result, detail = "failed", traceback.format_exc(limit=-3)
        self.add(case, result, detail, time.monotonic() - start)

    def write(self) -> None:
        """Writes the file, after every case, so that it shows where a suite was interrupted."""
        with open(os.environ["SUITE_RESULTS"], "w", encoding="utf-8") as file:
            json.dump({"versions": self.versions, "cases": self.cases}, file, indent=1)
