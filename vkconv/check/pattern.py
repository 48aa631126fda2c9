"""Where in an output the wrong elements are, in the words of someone who looks for the cause."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

# What the axes of a value mean, by rank: those of NCHW where there are three or more.
_AXES: dict[int, tuple[str, ...]] = {
    1: ("element",),
    2: ("row", "column"),
    3: ("channel", "row", "column"),
    4: ("image", "channel", "row", "column"),
    5: ("image", "channel", "slice", "row", "column"),
}
_FEW = 6
# Workgroup tiles and subgroups are powers of two from here on.
_LEAST_TILE = 4


def pattern(wrong: Mask) -> str:
    """``every element``, ``all of channels 3, 7``, ``the last 3 columns``, ``columns 1 of every 8``, ``rows 8 to 15 of
    columns 16 to 31 (tiles of 8x16)``, or how many of how many; empty where nothing is wrong."""
    count = int(wrong.sum())
    if count == 0:
        return ""
    if count == wrong.size:
        return "every element"
    names = _AXES.get(wrong.ndim, tuple(f"axis {i}" for i in range(wrong.ndim)))
    places = [np.flatnonzero(wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != i))) for i in range(wrong.ndim)]
    partial = [i for i, at in enumerate(places) if len(at) < wrong.shape[i]]
    filled = count == math.prod(len(at) for at in places)
    if filled and partial:
        words = " of ".join(_places(names[i], places[i], wrong.shape[i]) for i in reversed(partial))
        whole = "all of " if any(wrong.shape[i] > 1 for i in range(wrong.ndim) if i not in partial) else ""
        return whole + words + _tile([places[i] for i in partial], [wrong.shape[i] for i in partial])
    share = f"{count} of {wrong.size} elements"
    if runs := _runs(wrong):
        return f"{share}, {runs}"
    if partial:
        return f"{share}, in " + " of ".join(_places(names[i], places[i], wrong.shape[i]) for i in reversed(partial))
    return f"{share}, all over"


def _places(name: str, at: npt.NDArray[np.intp], size: int) -> str:
    """Some of the indices along an axis, in as few words as tell them."""
    first, last, count = int(at[0]), int(at[-1]), len(at)
    if count == 1:
        return f"the last {name}" if last == size - 1 else f"{name} {first}"
    if last - first + 1 == count:
        if last == size - 1:
            return f"the last {count} {name}s"
        return f"{name}s {first} to {last}"
    steps = np.diff(at)
    if count > 2 and (steps == steps[0]).all():
        return f"{name} {first % int(steps[0])} of every {int(steps[0])}" + (
            f" from {first}" if first >= steps[0] else ""
        )
    if count <= _FEW:
        return f"{name}s {', '.join(map(str, at.tolist()))}"
    return f"{count} {name}s from {first} to {last}"


def _runs(wrong: Mask) -> str:
    """``runs of 32 of every 64 in memory order``: what a wrong workgroup size or a wrong number of groups leaves."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], wrong.ravel().astype(np.int8), [0]))))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if len(starts) == 1:
        return f"{int(starts[0])} to {int(edges[1]) - 1} in memory order"
    # What is cut off at the end counts as whole.
    even = (lengths[:-1] == lengths[0]).all() and lengths[-1] <= lengths[0]
    steps = np.diff(starts)
    if lengths[0] > 1 and len(starts) > 2 and even and (steps == steps[0]).all():
        return f"runs of {int(lengths[0])} of every {int(steps[0])} in memory order from {int(starts[0])}"
    return ""


def _tile(places: Sequence[npt.NDArray[np.intp]], sizes: Sequence[int]) -> str:
    """``(tiles of 8x16)`` where what is wrong is whole, aligned blocks of powers of two."""
    spans = [(int(at[0]), int(at[-1]) + 1 - int(at[0]), len(at)) for at in places]
    if any(span != count for _, span, count in spans):
        return ""
    aligned = all(
        span >= _LEAST_TILE and span & (span - 1) == 0 and start % span == 0 and span < size
        for (start, span, _), size in zip(spans, sizes, strict=True)
    )
    return f" (tiles of {'x'.join(str(span) for _, span, _ in spans)})" if aligned else ""
