"""Walks over a strided index space: merging of dimensions, and how one is laid over invocations.

Every layout and broadcasting kernel of vkconv visits an output index space in row-major order and reads each
operand at a fixed stride per dimension (0 where it repeats, negative where it runs backwards). Dimensions that
all operands step through as one are merged first: equal shapes become rank 1, a bias over channels rank 2 or 3.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import linear_groups, local_sizes
from vkconv.ops.core.requirements import lane_by_lane
from vkconv.program import Argument, Dispatch, Word, positional, read, write
from vkconv.route import Params

MAX_RANK = 8  # dimensions after merging that the kernels' push constants hold
# Invocations per workgroup of elementwise kernels, the default first, which is below every device's limit.
_LOCALS = (64, 8, 16, 32, 128, 256)
# Inner elements per invocation at most, the default first: one index decomposition, with its divisions, serves all.
_ITEMS = (8, 4, 2, 1, 16)

STRIDED_COPY = Shader(shaders.kernels.STRIDED_COPY, DType.U32)
STRIDED_COPIES = {4: STRIDED_COPY, 8: Shader(shaders.kernels.STRIDED_COPY, DType.I64)}  # by the bytes of an element


@dataclasses.dataclass(frozen=True)
class Walk:
    """A merged index space: its dims, and for every tensor one stride per dim (in elements)."""

    dims: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    def table(self, *names: str, rank: int = MAX_RANK) -> dict[str, Argument]:
        """dims, then each tensor's strides, under these names of push constants, each padded to ``rank`` words."""
        fill = (0,) * (rank - self.rank)
        rows = zip(names, (self.dims, *self.strides), strict=True)
        return {name: (*row, *fill) for name, row in rows}

    def padded(self, rank: int = MAX_RANK) -> tuple[int, ...]:
        """dims, then each tensor's strides, each padded to ``rank`` words: the tail of a push-constant block."""
        fill = rank - self.rank
        return tuple(w for row in (self.dims, *self.strides) for w in (*row, *(0,) * fill))


def merge(dims: Sequence[int], *strides: Sequence[int]) -> Walk:
    """Drop dims of 1 and join neighbours that every tensor steps through as one; rank 1 at the least."""
    kept = [i for i, n in enumerate(dims) if n != 1]
    out: list[list[int]] = []  # [n, stride of tensor 0, stride of tensor 1, ...]
    for i in kept:
        row = [dims[i], *(s[i] for s in strides)]
        if out and all(a == b * row[0] for a, b in zip(out[-1][1:], row[1:], strict=True)):
            out[-1] = [out[-1][0] * row[0], *row[1:]]
        else:
            out.append(row)
    rows = out or [[1, *(0 for _ in strides)]]
    return Walk(tuple(r[0] for r in rows), tuple(tuple(r[t + 1] for r in rows) for t in range(len(strides))))


@dataclasses.dataclass(frozen=True)
class Lanes:
    """How rows of ``inner`` elements spread over invocations: ``chunk`` invocations per row, each taking
    ``items`` elements ``chunk`` apart, so that neighbouring invocations touch neighbouring elements."""

    items: int
    chunk: int
    invocations: int
    groups: tuple[int, int, int]

    @property
    def push(self) -> dict[str, Argument]:
        """The push constants of shaders/include/walk.glsl."""
        return {"invocations": self.invocations, "chunk": self.chunk}


def local_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The parameter of kernels that do one thing per invocation: the workgroup size."""
    return {"local": local_sizes(device, *_LOCALS)}


def walk_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The parameters of kernels that give an invocation several elements: workgroup size, elements at most."""
    return {**local_params(call, device), "items": _ITEMS}


def lanes(rows: int, inner: int, device: Device, params: Params) -> Lanes:
    """The spread for ``rows`` rows; items is the power of two that ``inner`` fills, up to the parameter."""
    items = min(params["items"], 1 << max(0, inner - 1).bit_length())
    chunk = max(1, ceil_div(inner, items))
    return Lanes(items, chunk, rows * chunk, linear_groups(rows * chunk, params["local"], device))


def walk_dispatch(
    shader: Shader,
    walk: Walk,
    device: Device,
    params: Params,
    inputs: Sequence[str],
    output: str,
    push: Sequence[Word] = (),
    spec: Sequence[Word] = (),
    rank: int = MAX_RANK,
) -> Dispatch:
    """One launch over a walk. Push block: invocations, chunk, ``push``, dims, strides; specialization
    constants 3 and 4 are the rank and the items per invocation, then ``spec``."""
    rows = 1
    for n in walk.dims[:-1]:
        rows *= n
    spread = lanes(rows, walk.dims[-1], device, params)
    return positional(
        shader,
        read(*inputs) + write(output),
        groups=spread.groups,
        local=(params["local"], 1, 1),
        push=(spread.invocations, spread.chunk, *push, *walk.padded(rank)),
        spec=(walk.rank, spread.items, *spec),
    )


def strided_copy(
    device: Device,
    params: Params,
    source: str,
    target: str,
    dims: Sequence[int],
    source_strides: Sequence[int],
    target_strides: Sequence[int],
    source_base: int = 0,
    target_base: int = 0,
    nbytes: int = 4,
) -> tuple[Dispatch, ...]:
    """Copy elements of ``nbytes``, 4 or 8: target[target_base + i.ts] = source[source_base + i.ss] for every index i of
    ``dims``.

    Empty for an empty index space. Raises GraphError where more than MAX_RANK dimensions stay apart.
    """
    if 0 in dims:
        return ()
    walk = merge(dims, source_strides, target_strides)
    if walk.rank > MAX_RANK:
        raise GraphError(f"copy of {source!r}: {walk.rank} dimensions stay after merging; at most {MAX_RANK} can")
    bases = (source_base, target_base)
    # Lane by lane, a load of four words takes twice the time of one. lavapipe, us by words and by fours: two of
    # 64x55x55 side by side 1764 726, 4x28 planes of 56x56 turned to 28x4 1798 687, 4x68 of 14x14 302 163.
    fours = lane_by_lane(device) and nbytes == 4 and _whole_fours(walk, *bases)
    if fours:
        bases = (source_base // 4, target_base // 4)
        outer = tuple((*(s // 4 for s in strides[:-1]), 1) for strides in walk.strides)
        walk = Walk((*walk.dims[:-1], walk.dims[-1] // 4), outer)
    spread = lanes(math.prod(walk.dims[:-1]), walk.dims[-1], device, params)
    copy = Dispatch(
        STRIDED_COPIES[nbytes],
        {"x": source, "y": target},
        spread.groups,
        (params["local"], 1, 1),
        {**spread.push, "x_base": bases[0], "y_base": bases[1], **walk.table("n", "xs", "ys")},
        {"RANK": walk.rank, "ITEMS": spread.items, "FOURS": fours},
    )
    return (copy,)


def _whole_fours(walk: Walk, *bases: int) -> bool:
    """Whether a copy is of runs of whole fours of words, each of which begins at one."""
    steps = (s for strides in walk.strides for s in strides[:-1])
    ends = (walk.dims[-1], *bases, *steps)
    return all(strides[-1] == 1 for strides in walk.strides) and all(end % 4 == 0 for end in ends)
