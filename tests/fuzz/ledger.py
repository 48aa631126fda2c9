"""What was fuzzed so far: tests/fuzz/runs.jsonl, a line of JSON for each run, so that several runs add up.

``python tests/fuzz/ledger.py`` prints the sums. A seed is used once on a target: it would try the same bytes again.
"""

import collections
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUNS = Path(__file__).parent / "runs.jsonl"


def runs() -> list[dict[str, Any]]:
    """Date, commit, seed, findings, seconds of processor, the slowest input in seconds, and ``inputs`` by target."""
    return [json.loads(line) for line in RUNS.read_text().splitlines()]


def used(seed: int, targets: set[str]) -> bool:
    """Whether a run of that seed had one of these targets."""
    return any(run["seed"] == seed and targets & run["inputs"].keys() for run in runs())


def record(seed: int, inputs: dict[str, int], findings: int, seconds: float, slowest_s: float) -> None:
    """Add a run of the checkout as it is."""
    head = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    run = {
        **{"date": datetime.date.today().isoformat(), "commit": head.stdout.strip(), "seed": seed},
        **{"findings": findings, "s": round(seconds), "slowest_s": round(slowest_s, 2), "inputs": inputs},
    }
    with RUNS.open("a") as file:
        file.write(json.dumps(run) + "\n")


def totals() -> dict[str, int]:
    """Inputs of all runs by target, the most first."""
    sums: collections.Counter[str] = collections.Counter()
    for run in runs():
        sums.update(run["inputs"])
    return dict(sums.most_common())


if __name__ == "__main__":
    found = totals()
    print(json.dumps({"inputs": sum(found.values()), "runs": len(runs()), "targets": found}, indent=1))
    sys.exit(0)
