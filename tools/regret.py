"""What the rules lose: each call by every route that may take it, with parameters, on the device; PyTorch beside it.

    python tools/regret.py measure CALLS.txt -o times.jsonl [--torch] [--seconds 300] [--without ROUTE]
    python tools/regret.py report times.jsonl [--device h200]

*measure* times each call of a file (a line each, ``#`` begins a comment) by the default parameters of each route, then
by other values of each parameter where a route is within `_NEAR` of the fastest, then by the best values together; the
choice of the rules and the fastest are timed once more at the end. Every result is checked against the float64
reference. With ``--torch`` PyTorch's time is taken too, as `tools/beside_torch.py` takes it. *report* asks the rules of
today, so a changed rule can be judged by times that are on file, as those of bench/results/regret are.
"""

import argparse
import dataclasses
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from vkconv.bench.engine import Trial, measure_all
from vkconv.bench.sampling import BenchOptions
from vkconv.bench.tune import best_together, settings
from vkconv.call import Call
from vkconv.core import VkconvError
from vkconv.device import Device, load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.plan.measured import kernels_of
from vkconv.route import Candidate, choose, judge
from vkconv.table import Column, Table

SCHEMA = "vkconv.regret/1"
_NEAR = 1.5
# Of each call at the end: the fastest, and as many times.
_FINALISTS, _TURNS = 3, 2

# A call, a route, its parameters, and whether these are the route's default.
Asked = tuple[str, str, dict[str, Any], bool]


@dataclasses.dataclass(frozen=True)
class Timed:
    """A call by a route with parameters, and its time."""

    call: str
    route: str
    params: dict[str, Any]
    us: float
    default: bool


def calls_of(path: Path) -> dict[str, Call]:
    """The calls of a file by their call strings."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    calls = [parse_call(line, OPS) for line in lines if line]
    return {format_call(call, OPS): call for call in calls}


class Measuring:
    """The times of calls so far, written as they come."""

    def __init__(
        self, calls: dict[str, Call], device: Device, file: TextIO, options: BenchOptions, without: frozenset[str]
    ) -> None:
        self.calls, self.device, self._file, self._options, self._without = calls, device, file, options, without
        self.found: dict[str, list[Timed]] = {text: [] for text in calls}

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def run(self, what: str, trials: Iterable[Asked], seconds: float = math.inf) -> None:
        """Time what is asked, until the time is up."""
        wanted = list(trials)
        started, count = time.monotonic(), 0
        asked = (Trial(self.calls[text], route, params) for text, route, params, _ in wanted)
        for (text, route, params, default), row in zip(
            wanted, measure_all(asked, device="auto", options=self._options), strict=False
        ):
            count += 1
            written = {"call": text, "route": route, "params": params, "default": default}
            if row.ok and row.us_median is not None:
                self.found[text].append(Timed(text, route, params, row.us_median, default))
                self.write({**written, "us": row.us_median, "spread_percent": row.us_spread_percent})
            else:
                self.write({**written, "check": row.check, "why": row.why})
            if time.monotonic() > started + seconds:
                break
        took = time.monotonic() - started
        print(f"{what}: {count} of {len(wanted)} rows in {took:.0f} s", file=sys.stderr, flush=True)

    def defaults(self) -> Iterator[Asked]:
        for text, call in self.calls.items():
            for route in OPS[call.op].routes:
                known = route.f16_depth is None and route.name not in self._without
                if known and judge(route, call, self.device).allowed:
                    yield text, route.name, dict(route.resolve(call, self.device, {})), True

    def _near(self) -> Iterator[tuple[str, Call, Timed]]:
        for text, call in self.calls.items():
            firsts = [row for row in self.found[text] if row.default]
            for first in firsts:
                if first.us <= _NEAR * min(row.us for row in firsts):
                    yield text, call, first

    def settings(self) -> Iterator[Asked]:
        for text, call, first in self._near():
            for params in settings(_route(call, first.route), call, self.device)[1:]:
                yield text, first.route, params, False

    def together(self) -> Iterator[Asked]:
        for text, call, first in self._near():
            rows = [_candidate(call, row) for row in self.found[text] if row.route == first.route]
            route = _route(call, first.route)
            params = route.changed(call, self.device, best_together(_candidate(call, first), rows), {})
            if all(row.params != params for row in rows):
                yield text, first.route, params, False

    def finals(self) -> Iterator[Asked]:
        for text, call in self.calls.items():
            rows = sorted(self.found[text], key=lambda row: row.us)
            choice = choose(OPS[call.op].routes, call, self.device)
            chosen = [(choice.route.name, dict(choice.params))]
            best = [(row.route, row.params) for row in rows[:_FINALISTS]]
            for route, params in [*chosen, *(one for one in best if one not in chosen)]:
                yield text, route, params, params == _route(call, route).resolve(call, self.device, {})


def _route(call: Call, name: str) -> Any:
    return next(route for route in OPS[call.op].routes if route.name == name)


def _candidate(call: Call, row: Timed) -> Candidate:
    return Candidate(row.route, row.params, row.us, 0.0, kernels_of(call.op, row.route))


def measure(path: Path, output: Path, seconds: float, with_torch: bool, without: frozenset[str]) -> None:
    from vkconv.backend.runtime import open_device

    live = open_device("auto")
    calls = calls_of(path)
    with output.open("w") as file:
        measuring = Measuring(calls, live.device, file, BenchOptions(min_time_s=0.004, runs=5), without)
        measuring.write({"schema": SCHEMA, "device": live.device.name, "driver": live.device.driver})
        if with_torch:
            import torch
            from beside_torch import torch_us

            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.benchmark = True
            for text, call in calls.items():
                measuring.write({"call": text, "peer_us": torch_us(call)})
                torch.cuda.empty_cache()
        measuring.run("defaults", measuring.defaults())
        if seconds > 0:
            varied = list(measuring.settings())
            random.Random(0).shuffle(varied)  # where the time is up before the end, all calls have lost as much
            measuring.run("parameters", varied, seconds)
            measuring.run("together", measuring.together())
        for _ in range(_TURNS):
            measuring.run("the fastest again", list(measuring.finals()))


@dataclasses.dataclass(frozen=True)
class Judged:
    """What today's rules choose for a call, and the fastest of what was timed, by default parameters and by any. ``us``
    is None where the choice was not timed."""

    call: str
    chosen: str
    us: float | None
    by_default: str
    by_default_us: float
    best: str
    best_us: float
    peer_us: float | None

    @property
    def regret(self) -> float | None:
        """Over the fastest route by default parameters."""
        return self.us and self.us / min(self.by_default_us, self.us)

    @property
    def with_parameters(self) -> float | None:
        """Over the fastest of all."""
        return self.us and self.us / self.best_us

    @property
    def ratio(self) -> float | None:
        """What the peer takes over what the choice takes."""
        return self.us and self.peer_us and self.peer_us / self.us


def judged(path: Path, device: Device) -> list[Judged]:
    """The calls of a file of times, by the rules that a device has today."""
    times: dict[str, dict[tuple[str, str], list[float]]] = {}
    defaults: dict[str, set[tuple[str, str]]] = {}
    peers: dict[str, float] = {}
    for line in map(json.loads, path.read_text().splitlines()[1:]):
        if "peer_us" in line:
            peers[line["call"]] = line["peer_us"]
        elif "us" in line:
            way = line["route"], json.dumps(line["params"], sort_keys=True)
            times.setdefault(line["call"], {}).setdefault(way, []).append(line["us"])
            if line["default"]:
                defaults.setdefault(line["call"], set()).add(way)
    found = []
    for text, ways in times.items():
        call = parse_call(text, OPS)
        choice = choose(OPS[call.op].routes, call, device)
        # Of ways that were timed again, the times of then: the first one chose them for being low.
        us = {way: statistics.median(of[1:] or of) for way, of in ways.items()}
        again = {way: value for way, value in us.items() if len(ways[way]) > 1} or us
        chosen = choice.route.name, json.dumps(dict(choice.params), sort_keys=True)
        best = min(again | {way: us[way] for way in us if way == chosen}, key=lambda way: us[way])
        first = min(defaults[text], key=lambda way: us[way])
        least = first[0], us[first], f"{best[0]} {best[1]}", us[best]
        found.append(Judged(text, str(choice), us.get(chosen), *least, peers.get(text)))
    return found


def mean(values: Iterable[float]) -> float:
    """The geometric one."""
    return math.exp(statistics.fmean(map(math.log, values)))


def report(path: Path, device: Device | None) -> None:
    """Print what the rules lose on each call, the worst first."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    wrong = [line for line in lines if line.get("check") in ("FAILED", "error")]
    rows = judged(path, device or load_device(lines[0]["device"]))
    rows.sort(key=lambda row: -(row.with_parameters or math.inf))

    def summary(of: Callable[[Judged], float | None], worst: Any) -> str:
        values = [value for value in map(of, rows) if value]
        return f"{mean(values):.3f} ({worst(values):.2f}, {len(values)} calls)" if values else "-"

    title = (
        f"{lines[0]['device']}: regret by default parameters {summary(lambda row: row.regret, max)}, with parameters "
        f"{summary(lambda row: row.with_parameters, max)}, beside the peer {summary(lambda row: row.ratio, min)}; "
        f"{len(wrong)} rows wrong"
    )
    names = ["call", "chosen", "us", "best by default", "us", "best", "us", "peer us"]
    columns = [Column(name, digits=3) for name in [*names, "regret", "with parameters", "peer / vkconv"]]
    cells = [(*dataclasses.astuple(row), row.regret, row.with_parameters, row.ratio) for row in rows]
    print(Table(title, columns, cells).to_markdown())
    for line in wrong:
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("measure")
    sub.add_argument("calls", type=Path)
    sub.add_argument("-o", "--output", type=Path, required=True)
    sub.add_argument("--torch", action="store_true")
    sub.add_argument("--seconds", type=float, default=math.inf, help="for parameters; 0: the defaults alone")
    sub.add_argument("--without", action="append", default=[], metavar="ROUTE", help="that is not timed")
    sub = commands.add_parser("report")
    sub.add_argument("times", type=Path)
    sub.add_argument("--device", help="a shipped device file, or a file; as named in the times if left out")
    args = parser.parse_args()
    try:
        if args.command == "measure":
            measure(args.calls, args.output, args.seconds, args.torch, frozenset(args.without))
        else:
            report(args.times, load_device(args.device) if args.device else None)
    except VkconvError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
