"""What GPUs' compilers made of the same calls in two results of ``vkconv compile``: each count over that of the other.

    vkconv compile --suite resnet50 --suite mobilenet --fixed-push --with adreno-740,navi31 -o fixed.json
    vkconv compile --suite resnet50 --suite mobilenet --no-fixed-push --with adreno-740,navi31 -o pushed.json
    python tools/compiled_beside.py fixed.json pushed.json

Of the launches of each run: the geometric mean and the largest ratio of instructions, and the geometric means of
registers and occupancy, where the driver says. *spill* counts launches with registers in memory, *pipelines* are the
distinct ones with all that load weights, and *compile ms* is what these took; of both results. Counts are static: a
loop that is unrolled counts as often as it runs, one that is not counts once.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from vkconv.compilers.rows import Result, Row
from vkconv.table import Column, Table

MEASURES = ("instructions", "registers", "occupancy")


def main(words: Sequence[str]) -> None:
    """Print a line for each GPU that is in both."""
    if len(words) != 2:
        sys.exit(__doc__)
    first, second = (msgspec.json.decode(Path(word).read_bytes(), type=Result) for word in words)
    columns = ["GPU", "launches", "instructions", "most", "registers", "occupancy", "spill", "pipelines", "compile ms"]
    cells = []
    for gpu in first.gpus:
        new, old = ([row for row in result.rows if row.gpu == gpu.name and row.shader] for result in (first, second))
        if old:
            cells.append([gpu.title, *beside(new, old)])
    print(Table("", [Column(name, digits=3) for name in columns], cells))


def beside(new: Sequence[Row], old: Sequence[Row]) -> list[float | int | str | None]:
    """The cells of a GPU behind its title."""
    pairs = list(matched(new, old))
    ratios = {
        name: [
            now / before
            for one, other in pairs
            if (now := getattr(one.code, name)) and (before := getattr(other.code, name))
        ]
        for name in MEASURES
    }
    mean = {name: math.exp(sum(map(math.log, of)) / len(of)) if of else None for name, of in ratios.items()}
    spills = (sum(row.code.spilled for row in side) for side in zip(*pairs, strict=True))
    every = ({row.pipeline: row.compile_ms or 0.0 for row in rows} for rows in (new, old))
    counts, times = zip(*((len(one), sum(one.values())) for one in every), strict=True)
    return [
        len(pairs),
        mean["instructions"],
        max(ratios["instructions"], default=None),
        mean["registers"],
        mean["occupancy"],
        *(" : ".join(f"{value:.0f}" for value in both) for both in (spills, counts, times)),
    ]


def matched(new: Iterable[Row], old: Iterable[Row]) -> Iterable[tuple[Row, Row]]:
    """The launches of runs in both, of one call in their order; only where they launch the same kernels."""
    by_call: tuple[dict[tuple[str, str], list[Row]], ...] = (defaultdict(list), defaultdict(list))
    for rows, found in zip((new, old), by_call, strict=True):
        for row in rows:
            if row.phase == "run":
                found[row.call, row.route].append(row)
    for key in by_call[0].keys() & by_call[1].keys():
        one, other = (found[key] for found in by_call)
        if [row.shader for row in one] == [row.shader for row in other]:
            yield from zip(one, other, strict=True)


if __name__ == "__main__":
    main(sys.argv[1:])
