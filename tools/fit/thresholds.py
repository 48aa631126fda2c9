"""Fit the threshold of a policy to times: from which size of a call on is one route faster than another?

    python tools/fit/thresholds.py calls dgrad.swap_1x1 > calls.txt
    vkconv bench $(cat calls.txt) --route swap_1x1 -o a.json
    vkconv bench $(cat calls.txt) --route phase_blocks -o b.json
    python tools/fit/thresholds.py fit dgrad.swap_1x1 a.json b.json

prints the row for the policy's file. Calls are drawn anew for each fit, none is of a suite. A third of them is held out
by the digest of their text, and judged by the threshold that the others gave. Loss is the geometric mean of the time of
the route that the threshold takes over that of the faster one.
"""

import argparse
import dataclasses
import hashlib
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fitting import fit_id

from vkconv.bench.files import read_result
from vkconv.call import Call
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

TOOL = "thresholds"
_SEED, _COUNT = 24, 72


@dataclasses.dataclass(frozen=True)
class Fit:
    """``above`` is taken from the threshold on, ``below`` under it; ``size`` is what is compared with it."""

    op: str
    above: str
    below: str
    size: Callable[[Call], int]
    draw: Callable[[random.Random], str]


@dataclasses.dataclass(frozen=True)
class Timed:
    """A call with its size and the times of both routes, us."""

    call: str
    size: int
    above_us: float
    below_us: float

    def loss(self, threshold: int) -> float:
        """The logarithm of what the threshold's choice takes over the faster one."""
        taken = self.above_us if self.size >= threshold else self.below_us
        return math.log(taken / min(self.above_us, self.below_us))


def _strided_1x1(r: random.Random) -> str:
    stride, c_in, c_out = r.choice((2, 2, 3)), r.randrange(8, 400), r.randrange(8, 400)
    h, w = r.randrange(5, 40), r.randrange(5, 40)
    shape = f"{h * stride}x{w * stride}"
    return f"conv2d_backward_data:dy=1x{c_out}x{h}x{w},w={c_out}x{c_in}x1x1,x_shape={shape},s={stride}"


def _operations(call: Call) -> int:
    return 2 * math.prod(call.shape("dy")) * math.prod(call.shape("w")[1:])


FITS = {
    "dgrad.swap_1x1": Fit("conv2d_backward_data", "swap_1x1", "phase_blocks", _operations, _strided_1x1),
}


def calls(name: str, count: int = _COUNT, seed: int = _SEED) -> list[str]:
    """Calls to time for a fit."""
    r = random.Random(f"{name}/{seed}")
    return [FITS[name].draw(r) for _ in range(count)]


def held_out(call: str) -> bool:
    """Whether a call is of the third that no threshold is fitted to."""
    return hashlib.sha256(call.encode()).digest()[0] % 3 == 0


def timed(name: str, paths: Iterable[Path]) -> list[Timed]:
    """The calls of results that have a right time of both routes."""
    fit, found = FITS[name], dict[str, dict[str, float]]()
    for path in paths:
        for row in read_result(path).rows:
            if row.op == fit.op and row.ok and row.us_median is not None:
                found.setdefault(row.call, {})[row.route] = row.us_median
    both = {call: us for call, us in found.items() if {fit.above, fit.below} <= us.keys()}
    sizes = {call: fit.size(parse_call(call, OPS)) for call in both}
    return [Timed(call, sizes[call], us[fit.above], us[fit.below]) for call, us in sorted(both.items())]


def loss(rows: Sequence[Timed], threshold: int) -> float:
    """The geometric mean of what a threshold's choices take over the faster ones."""
    return math.exp(sum(row.loss(threshold) for row in rows) / max(1, len(rows)))


def best_threshold(rows: Sequence[Timed]) -> int:
    """The threshold of least loss; between two calls it is their mean, and of several the one in the middle."""
    sizes = sorted({row.size for row in rows})
    tries = [sizes[0], *((a + b) // 2 for a, b in itertools.pairwise(sizes)), sizes[-1] + 1]
    losses = [loss(rows, threshold) for threshold in tries]
    best = [threshold for threshold, one in zip(tries, losses, strict=True) if one <= min(losses) + 1e-9]
    return best[len(best) // 2]


def rounded(value: int) -> int:
    """Two digits: more would not be known."""
    if value < 100:
        return value
    step = 10 ** (len(str(value)) - 2)
    return round(value / step) * step


def report(name: str, paths: Sequence[Path]) -> str:
    """The row of the policy, and what the fit rests on."""
    rows = timed(name, paths)
    train, test = [r for r in rows if not held_out(r.call)], [r for r in rows if held_out(r.call)]
    threshold = rounded(best_threshold(train))
    header = read_result(paths[0]).header
    lines = [
        f"# {header.device}, {header.driver}: {len(train)} calls fitted, {len(test)} held out",
        f"# loss of the threshold: {loss(train, threshold):.3f} fitted, {loss(test, threshold):.3f} held out;",
        f"# always {FITS[name].above} {loss(test, 0):.3f}, always {FITS[name].below} {loss(test, sys.maxsize):.3f}",
        f"value = {threshold}",
        f'fit = "{fit_id(TOOL, name, *paths)}"',
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("calls", "fit"):
        sub = commands.add_parser(command)
        sub.add_argument("name", choices=FITS)
        if command == "fit":
            sub.add_argument("results", nargs="+", type=Path)
    wanted = parser.parse_args()
    if wanted.command == "calls":
        print("\n".join(calls(wanted.name)))
    else:
        print(report(wanted.name, wanted.results))


if __name__ == "__main__":
    main()
