"""Matrix products: the problem as strided matrices, and launches of kernels in registers, subgroups, shared memory."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import align, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import first, holds_workgroup, local_sizes, over_workgroups
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.f16_accumulation import F32, Arithmetic
from vkconv.ops.kernels.gemm_tile import ENOUGH, Compilers, GemmTile, by_name, pushes, tile_by_rule
from vkconv.ops.kernels.prepack import Sizes
from vkconv.policy import Policy
from vkconv.program import Argument, Dispatch, Program, Word
from vkconv.route import Params

MAX_BATCH_GROUPS = 4
VEC4 = 4
# Unequal slices are whole vectors of every width and whole k-tiles of most depths.
_SLICE_STEP = 32


@dataclasses.dataclass(frozen=True, slots=True)
class GemmProblem:
    """y = alpha a b + beta bias as strided matrices: y is m x n, each element a sum of k products.

    ``a``, ``b`` and ``y`` are (row, column) strides in elements. ``batch`` has for each batch group, outermost first,
    its extent and the strides of a and b over it; y is dense over batches. ``base`` is the first element in a, b and y.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    y: tuple[int, int]
    batch: tuple[tuple[int, int, int], ...] = ()
    bias_by_row: bool = False
    base: tuple[int, int, int] = (0, 0, 0)
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def elements(self) -> int:
        """Of both operands, each once where batches share it, and of y."""
        a, b = (math.prod(one[0] for one in self.batch if one[at]) for at in (1, 2))
        return a * self.m * self.k + b * self.k * self.n + self.batches * self.m * self.n

    @classmethod
    def of(cls, call: Call, *, merge: bool = True) -> Self:
        """That of a matmul. Neighbouring batch dimensions that broadcast alike are one group, and with ``merge`` the
        batch of a is more rows when b has none."""
        a, b = call.shape("a"), call.shape("b")
        m, n = call.shape("y")[-2:]
        k = a[-2] if call["trans_a"] else a[-1]
        lead = call.shape("y")[:-2]
        over_a = (1,) * (len(lead) - len(a) + 2) + a[:-2]
        over_b = (1,) * (len(lead) - len(b) + 2) + b[:-2]
        groups: list[tuple[int, int, int]] = []  # (extent, extent in a, extent in b)
        for extent, in_a, in_b in zip(lead, over_a, over_b, strict=True):
            if extent == 1:
                continue
            if groups and (groups[-1][1] == 1) == (in_a == 1) and (groups[-1][2] == 1) == (in_b == 1):
                last = groups.pop()
                extent, in_a, in_b = extent * last[0], in_a * last[1], in_b * last[2]
            groups.append((extent, in_a, in_b))
        if merge and len(groups) == 1 and groups[0][2] == 1 and not call["trans_a"]:
            m *= groups[0][0]
            groups = []
        batch: list[tuple[int, int, int]] = []
        step_a, step_b = math.prod(a[-2:]), math.prod(b[-2:])
        for extent, in_a, in_b in reversed(groups):
            batch.append((extent, 0 if in_a == 1 else step_a, 0 if in_b == 1 else step_b))
            step_a, step_b = step_a * in_a, step_b * in_b
        strides_a = (1, a[-1]) if call["trans_a"] else (a[-1], 1)
        strides_b = (1, b[-1]) if call["trans_b"] else (b[-1], 1)
        alpha, beta = (float(call[name]) if name in call.attrs else 1.0 for name in ("alpha", "beta"))
        return cls(m, n, k, strides_a, strides_b, (n, 1), tuple(reversed(batch)), alpha=alpha, beta=beta)

    @property
    def batches(self) -> int:
        return math.prod(extent for extent, _, _ in self.batch)

    @property
    def least_side(self) -> int:
        """Rows or columns of y, whichever are fewer."""
        return min(self.m, self.n)

    def __str__(self) -> str:
        return f"{self.m}x{self.n} over {self.k}"

    def transposed(self) -> Self:
        """y^T = b^T a^T, over the same memory."""
        return dataclasses.replace(
            self,
            m=self.n,
            n=self.m,
            a=self.b[::-1],
            b=self.a[::-1],
            y=self.y[::-1],
            batch=tuple((extent, b, a) for extent, a, b in self.batch),
            bias_by_row=not self.bias_by_row,
            base=(self.base[1], self.base[0], self.base[2]),
        )

    def slice_length(self, slices: int, width: int) -> int:
        """Of so many slices of k: equal ones, of whole vectors of ``width`` where k is whole vectors; or else whole
        k-tiles, of which the last slice has fewer, unless nothing were left to it and equal ones can be."""
        width = width if self.k % width == 0 else 1
        whole = align(ceil_div(self.k, slices), _SLICE_STEP)
        equal = self.k % slices == 0 and (self.k % (slices * width) == 0 or (slices - 1) * whole >= self.k)
        return self.k // slices if equal else whole

    def in_slices(self, slices: int, width: int) -> tuple[Self, ...]:
        """The same in so many slices of k, each a batch of all, which are to be added up; a last one that is shorter
        than the others is a problem of its own."""
        if slices == 1:
            return (self,)
        k = self.slice_length(slices, width)
        rest = self.k - (slices - 1) * k
        count = slices if rest == k else slices - 1
        a, b = k * self.a[1], k * self.b[0]
        equal = dataclasses.replace(self, k=k, batch=((count, a, b), *self.batch), beta=1.0)
        if rest == k:
            return (equal,)
        of_a, of_b, of_y = self.base
        base = (of_a + count * a, of_b + count * b, of_y + count * self.m * self.n * self.batches)
        return equal, dataclasses.replace(self, k=rest, beta=1.0, base=base)

    def blocks(self, rows: int, columns: int) -> int:
        """Workgroups by tiles of so many rows and columns."""
        return self.batches * ceil_div(self.m, rows) * ceil_div(self.n, columns)

    def a_in_vectors(self, width: int) -> bool:
        """Whether rows or columns of a are whole vectors of ``width`` elements."""
        return _in_vectors(width, (self.m, self.k), self.a, self.base[0], [a for _, a, _ in self.batch])

    def b_in_vectors(self, width: int) -> bool:
        """Whether rows or columns of b are."""
        return _in_vectors(width, (self.k, self.n), self.b, self.base[1], [b for _, _, b in self.batch])

    def y_in_vectors(self, width: int) -> bool:
        """Whether rows of y are."""
        return self.y[1] == 1 and _in_vectors(width, (self.m, self.n), self.y, self.base[2], [self.m * self.n])


def _in_vectors(
    width: int, extents: tuple[int, int], strides: tuple[int, int], base: int, batch: Sequence[int]
) -> bool:
    if 1 not in strides:
        return False
    inner = strides.index(1)
    return all(step % width == 0 for step in (extents[inner], strides[1 - inner], base, *batch))


# Where lanes share the loads of a. The large one only long products are worth.
_SUBGROUP_ROWS, _SUBGROUP_ROWS_LONG = Sizes((16, 8, 4), (32,)), Sizes((32, 16, 8, 4))
_SUBGROUP_COLUMNS = Sizes((8, 4, 1), (16,))
_LONG_FLOPS = Policy("matmul.subgroup_long_flops", float)

REGISTER = Shader(shaders.kernels.MATMUL_REGISTER)
SUBGROUP = Shader(shaders.kernels.MATMUL_SUBGROUP)
SHARED = Shader(shaders.kernels.MATMUL_SHARED)

# The parameter ``tile`` of the route.
SHARED_TILES: Mapping[str, GemmTile] = by_name(
    GemmTile(128, 128, 16, 8, 8),
    GemmTile(128, 64, 16, 8, 8),
    GemmTile(64, 128, 16, 8, 8),
    GemmTile(128, 96, 16, 8, 8),
    GemmTile(64, 96, 16, 8, 4),
    GemmTile(128, 128, 8, 8, 8),
    GemmTile(64, 64, 16, 8, 4),
    GemmTile(64, 64, 16, 4, 4),
    GemmTile(64, 32, 16, 4, 4),
    GemmTile(32, 64, 16, 4, 4),
    GemmTile(32, 32, 16, 4, 4),
    GemmTile(64, 64, 8, 4, 4),
    GemmTile(64, 64, 32, 8, 8),
    GemmTile(32, 32, 8, 4, 4),
    GemmTile(64, 64, 16, 4, 4, unroll=False),
    GemmTile(64, 64, 8, 4, 4, unroll=False),
    GemmTile(32, 32, 16, 4, 4, unroll=False),
    GemmTile(32, 32, 8, 4, 4, unroll=False),
)
# The first that makes enough workgroups is the default, or the last that the device can hold.
_SHARED_RULE = ("128x128x16", "128x128x8", "64x64x16", "64x64x16_4x4", "32x32x16")
LEAST_TILE = SHARED_TILES[_SHARED_RULE[-1]]

Operands = tuple[str, str]
"""The buffers of a and b."""


def oriented(call: Call, params: Params, *, merge: bool = True) -> tuple[GemmProblem, Operands]:
    """The problem of a matmul and its operands, transposed where the parameter ``swap`` says so."""
    g = GemmProblem.of(call, merge=merge)
    return (g.transposed(), ("b", "a")) if params["swap"] else (g, ("a", "b"))


def in_one_launch(call: Call, device: Device, launch: Callable[[Epilogue], Dispatch]) -> Program:
    """The program of a matmul by one launch, which takes the epilogue of the call."""
    e = Epilogue.of(call, device, "bias")
    return e.complete(Program((launch(e),)), call.shape("y"), device)


def buffers(operands: Operands, e: Epilogue) -> Mapping[str, str | None]:
    """The buffers of every product."""
    return {"a": operands[0], "b": operands[1], "y": e.target, **e.buffers}


def push(g: GemmProblem, e: Epilogue) -> Mapping[str, Argument]:
    """The push constants of every product (shaders/include/matmul.glsl)."""
    batch = ((1, 0, 0),) * (MAX_BATCH_GROUPS - len(g.batch)) + g.batch
    extents, a_steps, b_steps = zip(*batch, strict=True)
    strides = {"a_row": g.a[0], "a_col": g.a[1], "b_row": g.b[0], "b_col": g.b[1], "y_row": g.y[0], "y_col": g.y[1]}
    batches = {"batch": extents, "a_batch": a_steps, "b_batch": b_steps}
    bases = dict(zip(("a_base", "b_base", "y_base"), g.base, strict=True))
    factors = {"alpha": g.alpha, "beta": g.beta}
    return {"m": g.m, "n": g.n, "k": g.k, **strides, **batches, **bases, **factors, **e.push}


def constants(g: GemmProblem, e: Epilogue) -> Mapping[str, Word]:
    """The specialization constants of every product."""
    return {**e.constants, "BIAS_BY_ROW": g.bias_by_row}


def register_product(
    g: GemmProblem,
    operands: Operands,
    e: Epilogue,
    params: Params,
    device: Device,
    shader: Shader = REGISTER,
    **more: Word,
) -> Dispatch:
    """A product by tiles of ``rows`` x ``columns`` per invocation; ``more`` are constants of the shader."""
    rows, columns, local = (params[name] for name in ("rows", "columns", "local"))
    return Dispatch(
        e.variant(shader),
        buffers(operands, e),
        *over_workgroups(g.blocks(rows, local * columns), local, device),
        push(g, e),
        {**constants(g, e), "TM": rows, "TN": columns, **more},
        loop_iterations=g.k,
    )


def subgroup_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The sizes that `subgroup_product` may take for a call on a device."""
    lanes = device.subgroup_size
    g = GemmProblem.of(call)
    swap = g.n < lanes < g.m
    g = g.transposed() if swap else g
    long = 2 * g.batches * g.m * g.n * g.k >= _LONG_FLOPS.of(device)
    sizes = _SUBGROUP_ROWS_LONG if long else _SUBGROUP_ROWS
    return {
        "rows": sizes.values(g.m, device),
        "columns": _SUBGROUP_COLUMNS.values(ceil_div(g.n, lanes), device),
        "local": local_sizes(device, lanes, 2 * lanes, 4 * lanes),
        "swap": (1, 0) if swap else (0, 1),
    }


def subgroup_product(g: GemmProblem, operands: Operands, e: Epilogue, params: Params, device: Device) -> Dispatch:
    """A product by tiles of ``rows`` x ``columns`` per invocation, the rows of a shared by the lanes of a subgroup."""
    steps = (g.n, g.b[0], g.y[0], *g.base[1:], g.m * g.n, *(b for _, _, b in g.batch))
    in_vec4 = g.b[1] == 1 and g.y[1] == 1 and all(step % VEC4 == 0 for step in steps)
    vec4 = params["columns"] % VEC4 == 0 and in_vec4
    return register_product(g, operands, e, params, device, SUBGROUP, SUBGROUP=device.subgroup_size, VEC4=vec4)


def padded_bytes(tile: GemmTile) -> int:
    """Shared memory of a workgroup: rows of both tiles are padded by a vec4."""
    return tile.shared_bytes + 2 * 4 * VEC4 * tile.depth


def compilers(device: Device, element: str = "") -> Compilers:
    """For products in shared memory."""
    return Compilers(shaders.kernels.MATMUL_SHARED, device, element)


def shared_params(g: GemmProblem, device: Device, element: str) -> Mapping[str, tuple[str, ...]]:
    """The tiles that `shared_product` may take for elements of a type, the rule's pick first."""
    fitting = {n: tile for n, tile in SHARED_TILES.items() if holds_workgroup(device, tile.local, padded_bytes(tile))}
    if not fitting.keys() & set(_SHARED_RULE):
        return {"tile": first(next(iter(SHARED_TILES)), fitting)}
    enough, by = ENOUGH.of(device).products, compilers(device, element)
    best = tile_by_rule(_SHARED_RULE, fitting, g.m, lambda name: _blocks(g, fitting[name]), enough, by)
    return {"tile": first(best, fitting)}


def _blocks(g: GemmProblem, tile: GemmTile) -> int:
    return g.blocks(tile.rows, tile.columns)


def shared_product(
    g: GemmProblem, operands: Operands, e: Epilogue, tile: GemmTile, device: Device, arithmetic: Arithmetic = F32
) -> Dispatch:
    """A product by tiles in shared memory."""
    sizes = {name: value for name, value in tile.constants.items() if name != "BUFFERS"}
    lies = {"A_BY_COL": g.a[0] == 1, "B_BY_ROW": g.b[0] == 1}
    in_vectors = g.a_in_vectors(VEC4), g.b_in_vectors(VEC4), g.y_in_vectors(VEC4)
    vectors = dict(zip(("A_VEC4", "B_VEC4", "Y_VEC4"), in_vectors, strict=True))
    return Dispatch(
        e.variant(arithmetic.variant(SHARED)),
        buffers(operands, e),
        *over_workgroups(_blocks(g, tile), tile.local, device),
        push(g, e),
        {**constants(g, e), **sizes, **lies, **vectors, **arithmetic.constants(tile.depth)},
        arithmetic.shared_bytes(padded_bytes(tile)),
        tile.loop_iterations(ceil_div(g.k, tile.depth) + 1),
        pushes=pushes(tile, SHARED.kernel, device),
    )
