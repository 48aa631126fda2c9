"""Outputs of a run: which to save where, and a table of them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vkconv.cli.output import save_each
from vkconv.core import Array, UsageError, atomic_write, did_you_mean, expand_user, is_stream, shape_str
from vkconv.table import Column, Table


def output_table(results: Mapping[str, Array]) -> Table:
    """One row per output; least, mean and largest of the finite elements, and how many are not."""
    rows = []
    for name, array in results.items():
        values = array.astype(np.float64)
        finite = values[np.isfinite(values)]
        low, mean, high = (
            (float(finite.min()), float(finite.mean()), float(finite.max())) if finite.size else (None,) * 3
        )
        nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        rows.append((name, shape_str(array.shape), array.dtype.name, low, mean, high, nan, inf))
    names = ("output", "shape", "dtype", "min", "mean", "max", "nan", "inf")
    return Table("", [Column(name) for name in names], rows)


def parse_outputs(texts: Iterable[str] | None, names: Sequence[str]) -> dict[Path, str]:
    """``["y=a.npy", "b.npy"]`` as file to output name. Raises UsageError for what the model does not have."""
    targets: dict[Path, str] = {}
    for text in texts or ():
        name, equals, file = text.partition("=")
        if not equals:
            if len(names) != 1:
                raise UsageError(f"-o {text}: the model has the outputs {', '.join(names)}; write -o NAME=FILE.npy")
            name, file = names[0], text
        if name not in names:
            raise UsageError(f"-o {text}: there is no output {name!r}{did_you_mean(name, names)}; {', '.join(names)}")
        path = expand_user(file, "-o")
        if path in targets or (path.suffix != ".npy" and not is_stream(path)):
            problem = "is there twice" if path in targets else "is no .npy file; outputs are saved in that format"
            raise UsageError(f"-o {text}: {file!r} {problem}")
        targets[path] = name
    return targets


def save_outputs(targets: Mapping[Path, str], results: Mapping[str, Array]) -> tuple[dict[str, str], UsageError | None]:
    """Write outputs as .npy files: by file which it has, and what `save_each` says of those that cannot be written."""

    def save(path: Path) -> None:
        with atomic_write(path) as file:
            np.save(file, results[targets[path]], allow_pickle=False)

    written, problem = save_each(targets, save)
    return {str(path): targets[path] for path in written}, problem
