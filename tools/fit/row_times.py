"""Times that tell a policy's row from others: calls drawn at random, by each way that another value would take.

    python tools/fit/row_times.py jobs conv2d.winograd --device h100 -o jobs.json
    python tools/fit/row_times.py measure jobs.json -o times.jsonl

*jobs* draws calls (`draws`, by the fit in upheld.toml), asks what is taken by the row as it is and with each other
value of each place, and keeps calls that tell most of what is told least. It needs no GPU. *measure* times the jobs on
the first device, checked against the float64 reference: the ways of a call one behind the other, ``--turns`` times, so
that a clock that changes is theirs alike. The files of bench/results/regret with rows in their name are made so, and
`tools/fit/upheld.py` reads them.
"""

import argparse
import collections
import functools
import gc
import itertools
import json
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from draws import DRAWS
from upheld import Fit, fits
from variations import changed
from ways import tried, with_value

from vkconv import policy, route
from vkconv.core import RouteError, VkconvError, atomic_write
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.policy import Policy, tables

SCHEMA = "vkconv.regret/1"
_SEED = 24
# Calls that each place should be told by, and that are drawn for them at most.
_WANTED, _DRAWN = 10, 400

Job = dict[str, Any]
"""A call, a route and its parameters, and the value of the row where programs differ by it."""


def _drawn(fit: Fit, seconds: float) -> Iterator[str]:
    """Texts of calls, none twice."""
    r, seen, end = random.Random(f"{fit.name}/{_SEED}"), set[str](), time.monotonic() + seconds
    for _ in range(_DRAWN):
        text = format_call(parse_call(DRAWS[r.choice(fit.draws)](r), OPS), OPS)
        if text not in seen:
            yield text
        seen.add(text)
        if time.monotonic() > end:
            break


def told_by(fit: Fit, seconds: float) -> Iterator[tuple[list[Job], set[str]]]:
    """Calls drawn at random that another value would have taken another way: their jobs, the way of the row first, and
    the places whose values do."""
    row, chooser = fit.row, fit.chooser
    values = list(fit.values())
    for text in _drawn(fit, seconds):
        call = parse_call(text, OPS)
        try:
            way, was_read = chooser.way(call, row)
        except RouteError:  # the route that is asked for does not take it
            continue
        found, places = {way: row.value}, set[str]()
        for place, value in values if was_read else ():
            other = changed(row.value, place, value)
            if (taken := tried(chooser, call, with_value(row, other))) is not None and taken != way:
                found.setdefault(taken, other)
                places.add(place)
        if places:
            yield [_job(fit, text, name, params, value) for (name, params, _), value in found.items()], places


def _job(fit: Fit, text: str, name: str, params: str, value: Any) -> Job:
    job = {"call": text, "route": name, "params": json.loads(params)}
    return {**job, "policy": fit.policy, "value": value} if fit.programs else job


def jobs(fit: Fit, ways: int, seconds: float) -> list[Job]:
    """At most about so many ways of calls that tell most."""
    calls, have = list(told_by(fit, seconds)), collections.Counter[str]()
    kept: list[Job] = []

    def tells(one: tuple[list[Job], set[str]]) -> float:
        return sum(1 / (1 + have[place]) for place in one[1]) / len(one[0])

    while calls and len(kept) < ways and not (have and min(have.values()) >= _WANTED and len(have) < 2):
        best = max(calls, key=tells)
        calls.remove(best)
        kept += best[0]
        have.update(best[1])
    return kept


def _put(device: Device, name: str, value: Any, original: Mapping[str, policy.Table]) -> None:
    """Have the device get a value of a policy, in what is planned from now on."""
    table = original[name]
    mine = policy.row_of(name, device)
    index = next(i for i, row in enumerate(table.rows) if row.when == mine.when)
    rows = [*table.rows[:index], with_value(mine, value), *table.rows[index + 1 :]]
    tables()[name] = msgspec.structs.replace(table, rows=tuple(rows))  # type: ignore[index]
    _forget()


def _forget() -> None:
    """Drop what was made of the rows of before."""
    policy.row_of.cache_clear()
    route._RECENT.clear()
    for one in gc.get_objects():
        if isinstance(one, Policy):
            one._values.cache_clear()
            one._of_rows.clear()
        elif isinstance(one, functools._lru_cache_wrapper) and (one.__module__ or "").startswith("vkconv.ops"):
            one.cache_clear()


def measure(wanted: list[Job], output: Path, turns: int, seconds: float) -> None:
    """Time the jobs, as many as there is time for."""
    from vkconv.backend.runtime import open_device
    from vkconv.bench.engine import Trial, measure_all
    from vkconv.bench.sampling import BenchOptions

    live, end, original = open_device("auto"), time.monotonic() + seconds, dict(tables())
    lines: list[dict[str, Any]] = [{"schema": SCHEMA, "device": live.device.name, "driver": live.device.driver}]
    for _, of_call in itertools.groupby(wanted, key=lambda job: job["call"]):
        ways = list(of_call)
        for turn in range(turns):
            for job in ways:
                if turn and "failed" in job:
                    continue
                if "value" in job:
                    _put(live.device, job["policy"], job["value"], original)
                trial = Trial(parse_call(job["call"], OPS), job["route"], job["params"])
                (row,) = measure_all([trial], options=BenchOptions(min_time_s=0.01, runs=5))
                if "value" in job:
                    tables()[job["policy"]] = original[job["policy"]]  # type: ignore[index]
                    _forget()
                line = {key: value for key, value in job.items() if key != "policy"}
                if row.ok and row.us_median is not None:
                    lines.append({**line, "us": round(row.us_median, 3)})
                else:
                    job["failed"] = True
                    lines.append({**line, "check": str(row.check), "why": row.why})
        if time.monotonic() > end:
            break
    with atomic_write(output) as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
    print(f"{output.name}: {len({line['call'] for line in lines[1:]})} calls, {len(lines) - 1} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("jobs")
    sub.add_argument("policy")
    sub.add_argument("--device", required=True, help="the shipped file whose row it is")
    sub.add_argument("--ways", type=int, default=80)
    sub.add_argument("--seconds", type=float, default=30.0, help="for drawing calls")
    timing = commands.add_parser("measure")
    timing.add_argument("jobs", type=Path)
    timing.add_argument("--turns", type=int, default=3)
    timing.add_argument("--seconds", type=float, default=float("inf"))
    for one in (sub, timing):
        one.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    try:
        if args.command == "jobs":
            made = jobs(fits()[f"{args.policy}/{args.device}"], args.ways, args.seconds)
            args.output.write_text("[\n" + ",\n".join(map(json.dumps, made)) + "\n]\n")
        else:
            measure(json.loads(args.jobs.read_text()), args.output, args.turns, args.seconds)
    except VkconvError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
