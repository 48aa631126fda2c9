"""What fits of costs share: files of calls and of times, least squares, thirds that are held out, and arguments."""

import argparse
import hashlib
import itertools
import json
import math
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from vkconv.core import atomic_write

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "fits"


def lines(path: Path) -> Iterator[str]:
    """The lines of a file, without comments and what is empty."""
    for line in path.read_text().splitlines():
        if text := line.partition("#")[0].strip():
            yield text


def write(made: dict[str, object], path: Path) -> None:
    """Write a file of times."""
    with atomic_write(path) as file:
        file.write(json.dumps(made, indent=1).encode() + b"\n")


def fit_id(tool: str, policy: str, *paths: Path) -> str:
    """What a row names its fit by: the tool, the policy, and the digest of the times."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()
    return f"{tool}/{policy}/{digest[:12]}"


def thirds(names: Iterable[str], seed: str) -> Iterator[frozenset[str]]:
    """Three parts of the names, drawn at random."""
    drawn = sorted(set(names))
    random.Random(seed).shuffle(drawn)
    return (frozenset(drawn[i::3]) for i in range(3))


def least_squares(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, float]:
    """The x of no negative number that makes a x nearest to b, and how far that is: the best over all subsets of
    columns that come out so."""
    best = np.zeros(a.shape[1]), float(np.linalg.norm(b))
    for size in range(1, a.shape[1] + 1):
        for kept in map(list, itertools.combinations(range(a.shape[1]), size)):
            x = np.linalg.lstsq(a[:, kept], b, rcond=None)[0]
            if (x >= 0).all():
                full = np.zeros(a.shape[1])
                full[kept] = x
                rest = float(np.linalg.norm(a @ full - b))
                best = (full, rest) if rest < best[1] - 1e-12 else best
    return best


def mean(values: Sequence[float]) -> float:
    """The geometric one."""
    return math.exp(statistics.fmean(map(math.log, values)))


def parsers(
    doc: str | None, make: str, source: str, names: Iterable[str] = ()
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of a tool, and that of its command ``make``, which takes the file ``source`` and writes times; the
    command ``fit`` takes times. Both take one of the ``names`` first where there are some."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making, fitting = commands.add_parser(make), commands.add_parser("fit")
    if choices := tuple(names):
        making.add_argument("name", choices=choices)
        fitting.add_argument("name", choices=choices)
    making.add_argument(source, type=Path)
    making.add_argument("-o", "--output", type=Path, required=True)
    fitting.add_argument("times", nargs="?", type=Path)
    fitting.add_argument("--device", default="h200", help="the shipped file of the GPU that was timed")
    return parser, making
