"""Walks over a strided index space: merging of dimensions, and how one is laid over invocations.

Every layout and broadcasting kernel of vkconv visits an output index space in row-major order and reads each
operand at a fixed stride per dimension (0 where it repeats, negative where it runs backwards). Dimensions that
all operands step through as one are merged first: equal shapes become rank 1, a bias over channels rank 2 or 3.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError, Shape, ceil_div
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Kernel, Shader
from vkconv.ops.core.base import first, over_invocations
from vkconv.ops.core.shapes import broadcast_shape, broadcast_strides
from vkconv.ops.core.workgroups import WORKGROUPS, alone, alone_by_default
from vkconv.policy import Policy
from vkconv.program import Argument, Dispatch, Word
from vkconv.route import Params

MAX_RANK = 8  # dimensions after merging that the kernels' push constants hold
_NONE: Mapping[str, Any] = {}


def by_width(kernel: Kernel) -> dict[int, Shader]:
    """Variants of a kernel that moves bits, by the bytes of an element."""
    return {4: Shader(kernel, DType.U32), 8: Shader(kernel, DType.I64)}


STRIDED_COPIES = by_width(shaders.kernels.STRIDED_COPY)
STRIDED_COPY = STRIDED_COPIES[4]


@dataclasses.dataclass(frozen=True)
class Walk:
    """A merged index space: its dims, and for every tensor one stride per dim (in elements)."""

    dims: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    def tables(self, shader: Shader) -> dict[str, Argument]:
        """`tables` of the dims and each tensor's strides."""
        return tables(shader, self.dims, *self.strides)


def tables(shader: Shader, *rows: Sequence[int]) -> dict[str, Argument]:
    """Numbers by dimension as the push constants that the shader declares from ``n`` on, filled up with 0."""
    declared = itertools.dropwhile(lambda field: field.name != "n", shader.interface.push)
    return {field.name: (*row, *(0,) * (field.count - len(row))) for field, row in zip(declared, rows, strict=False)}


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


def broadcast(op: str, operands: Collection[TensorSpec], most: int = MAX_RANK) -> Shape:
    """The numpy broadcast of the operands; GraphError where a kernel of so many dimensions cannot walk over it."""
    out = broadcast_shape(op, *(spec.dims for spec in operands))
    rank = merge(out, *(broadcast_strides(spec.dims, out) for spec in operands)).rank
    if rank > most:
        raise GraphError(f"{op}: {rank} dimensions stay after merging; at most {most} can")
    return out


@dataclasses.dataclass(frozen=True)
class Lanes:
    """How rows of ``inner`` elements spread over invocations: ``chunk`` invocations per row, each taking
    ``items`` elements ``chunk`` apart, so that neighbouring invocations touch neighbouring elements."""

    items: int
    chunk: int
    invocations: int


def local_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The parameter of kernels that do one thing per invocation: the workgroup size."""
    return {"local": alone(device)}


def walk_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The parameters of kernels that give an invocation several elements, for which one index decomposition with its
    divisions serves: workgroup size, elements at most."""
    return {**local_params(call, device), "items": WORKGROUPS.of(device).items}


def walk_defaults(device: Device) -> Params:
    """The parameters of a walk that is a step of another route."""
    return {"local": alone_by_default(device), "items": WORKGROUPS.of(device).items[0]}


_LEAST_RUN = Policy("kernels.copy_vec4_run", int)
_RUNS = (0, 1, 24)


def copy_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The parameters of strided copies: those of walks, and the vec4 of a run from which runs are copied by vec4 (0:
    none are)."""
    return {**walk_params(call, device), "vec4_run": first(_LEAST_RUN.of(device), _RUNS)}


def lanes(rows: int, inner: int, params: Params) -> Lanes:
    """The spread for ``rows`` rows; items is the power of two that ``inner`` fills, up to the parameter."""
    items = min(params["items"], 1 << max(0, inner - 1).bit_length())
    chunk = max(1, ceil_div(inner, items))
    return Lanes(items, chunk, rows * chunk)


def dispatch_each(
    shader: Shader,
    invocations: int,
    device: Device,
    params: Params,
    push: Mapping[str, Argument],
    constants: Mapping[str, Word] = _NONE,
    buffers: Mapping[str, str | None] = _NONE,
    loop_iterations: int = 0,
) -> Dispatch:
    """One launch of at least so many invocations. Bindings that ``buffers`` leaves out take the buffer of their
    name."""
    bound = {b.name: b.name for b in shader.interface.bindings}
    grid = over_invocations(invocations, params["local"], device)
    return Dispatch(shader, {**bound, **buffers}, *grid, push, constants, loop_iterations=loop_iterations)


def dispatch_rows(
    shader: Shader,
    rows: int,
    inner: int,
    device: Device,
    params: Params,
    push: Mapping[str, Argument],
    constants: Mapping[str, Word] = _NONE,
    buffers: Mapping[str, str | None] = _NONE,
) -> Dispatch:
    """`dispatch_each` over the `lanes` of rows, which the shader takes as invocations, chunk and ITEMS."""
    spread = lanes(rows, inner, params)
    push = {"invocations": spread.invocations, "chunk": spread.chunk, **push}
    constants = {"ITEMS": spread.items, **constants}
    return dispatch_each(shader, spread.invocations, device, params, push, constants, buffers)


def walk_dispatch(
    shader: Shader,
    walk: Walk,
    device: Device,
    params: Params,
    push: Mapping[str, Argument] = _NONE,
    constants: Mapping[str, Word] = _NONE,
    buffers: Mapping[str, str | None] = _NONE,
) -> Dispatch:
    """`dispatch_rows` over a walk, which the shader takes as RANK and the push constants of `tables`."""
    rows, inner = math.prod(walk.dims[:-1]), walk.dims[-1]
    push, constants = {**walk.tables(shader), **push}, {"RANK": walk.rank, **constants}
    return dispatch_rows(shader, rows, inner, device, params, push, constants, buffers)


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
    least = params["vec4_run"] if "vec4_run" in params else _LEAST_RUN.of(device)
    vec4 = nbytes == 4 and 0 < 4 * least <= walk.dims[-1] and _whole_vec4(walk, *bases)
    if vec4:
        bases = (source_base // 4, target_base // 4)
        outer = tuple((*(s // 4 for s in strides[:-1]), 1) for strides in walk.strides)
        walk = Walk((*walk.dims[:-1], walk.dims[-1] // 4), outer)
    push, buffers = {"x_base": bases[0], "y_base": bases[1]}, {"x": source, "y": target}
    return (walk_dispatch(STRIDED_COPIES[nbytes], walk, device, params, push, {"VEC4": vec4}, buffers),)


def _whole_vec4(walk: Walk, *bases: int) -> bool:
    """Whether a copy is of runs of whole vec4, each aligned to one."""
    steps = (s for strides in walk.strides for s in strides[:-1])
    ends = (walk.dims[-1], *bases, *steps)
    return all(strides[-1] == 1 for strides in walk.strides) and all(end % 4 == 0 for end in ends)
