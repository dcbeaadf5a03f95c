#!/usr/bin/env python3
"""Compares the results of suites with the known differences: report.py KNOWN_DIFFERENCES RESULTS_FOLDER SUITE…

A case must pass, unless the list of known differences has another result for it; then it must have that result, with the text
that the list gives. So a difference that disappears is reported, too. Prints a table; ends with 1 if a result is unexpected.
"""

import json
import pathlib
import sys
import tomllib


def compare(suite: str, cases: list[dict], differences: list[dict]) -> list[str]:
    """Returns the unexpected results of a suite."""
    unexpected = []
    entries = [entry for entry in differences if entry["suite"] == suite]
    known = {case: entry for entry in entries for case in entry["cases"]}
    for case in cases:
        entry = known.pop(case["case"], {"result": "passed", "text": ""})
        if case["result"] != entry["result"]:
            unexpected.append(f"{case['case']}: {case['result']}, expected: {entry['result']}\n{case['detail']}")
        elif entry["text"] not in case["detail"]:
            unexpected.append(f"{case['case']}: no \"{entry['text']}\" in:\n{case['detail']}")
    unexpected += [f"{case}: did not run, expected: {entry['result']}" for case, entry in known.items()]
    return unexpected


def main() -> int:
    differences = tomllib.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))["difference"]
    folder, suites = pathlib.Path(sys.argv[2]), sys.argv[3:]
    print(f"\n{'suite':<18}{'passed':>8}{'failed':>8}{'unsupported':>13}{'unexpected':>12}{'seconds':>9}  versions")
    messages = []
    for suite in suites:
        file = folder / f"{suite}.json"
        if not file.exists():
            messages.append(f"{suite}: no results")
            continue
        report = json.loads(file.read_text(encoding="utf-8"))
        cases = report["cases"]
        numbers = [sum(case["result"] == result for case in cases) for result in ("passed", "failed", "unsupported")]
        unexpected = compare(suite, cases, differences)
        messages += [f"{suite}: {text}" for text in unexpected]
        seconds = sum(case["seconds"] for case in cases)
        versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        row = f"{suite:<18}{numbers[0]:>8}{numbers[1]:>8}{numbers[2]:>13}{len(unexpected):>12}{seconds:>9.1f}"
        print(f"{row}  {versions}")
    for message in messages:
        print(f"\nunexpected: {message}")
    return 1 if messages else 0


sys.exit(main())
