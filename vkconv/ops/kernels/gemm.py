"""Matrix products: the problem as strided matrices, and launches of kernels in registers, subgroups, shared memory."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import linear_groups, local_sizes, most_invocations
from vkconv.ops.kernels.epilogue import epilogue_constants, epilogue_numbers, rescales
from vkconv.ops.kernels.gemm_tile import GemmTile
from vkconv.ops.kernels.prepack import Sizes
from vkconv.program import Bind, Dispatch, Word, positional, read, write
from vkconv.route import Params

MAX_BATCH_GROUPS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """A call as matrices with strides in elements: (row, column) of a, b and y, and per batch group (outermost
    first) its extent and the strides of a and b over it. ``base`` is the first element in a, b and y."""

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    y: tuple[int, int]
    batch: tuple[tuple[int, int, int], ...]
    bias_by_row: bool = False
    base: tuple[int, int, int] = (0, 0, 0)

    @property
    def batches(self) -> int:
        return math.prod(extent for extent, _, _ in self.batch)

    def swapped(self) -> "Layout":
        """The transposed problem, y^T = b^T a^T, over the same memory."""
        batch = tuple((extent, b, a) for extent, a, b in self.batch)
        base = (self.base[1], self.base[0], self.base[2])
        strides = self.b[::-1], self.a[::-1], self.y[::-1]
        return Layout(self.n, self.m, self.k, *strides, batch, not self.bias_by_row, base)


def layout(call: Call, *, merge: bool = True) -> Layout:
    """Strides of a call. Neighbouring batch dimensions that broadcast alike are one group, and with ``merge`` the batch
    of a is more rows when b has none."""
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
    return Layout(m, n, k, strides_a, strides_b, (n, 1), tuple(reversed(batch)))


# Where lanes share the loads of a. lavapipe, us, subgroup rows x columns and register: 1x40x120 @ 120x6625 16x8 3450,
# 8x8 4480, register 5950; 512x512 @ 512x512 32x8 6880, 16x8 8200, register 19200. The large one takes 0.5 s to compile,
# the next 0.25, which only long products are worth.
_SUBGROUP_ROWS, _SUBGROUP_ROWS_LONG = Sizes((16, 8, 4), (32,)), Sizes((32, 16, 8, 4))


_SUBGROUP_COLUMNS = Sizes((8, 4, 1), (16,))


_LONG_FLOPS = 5e7


REGISTER = Shader(shaders.kernels.MATMUL_REGISTER)


SUBGROUP = Shader(shaders.kernels.MATMUL_SUBGROUP)


SHARED = Shader(shaders.kernels.MATMUL_SHARED)


# By number: the parameter ``tile`` of the route.
SHARED_TILES: tuple[GemmTile, ...] = (
    GemmTile(128, 128, 16, 8, 8),
    GemmTile(128, 64, 16, 8, 8),
    GemmTile(64, 128, 16, 8, 8),
    GemmTile(128, 128, 8, 8, 8),
    GemmTile(64, 64, 16, 8, 4),
    GemmTile(64, 64, 16, 4, 4),
    GemmTile(64, 32, 16, 4, 4),
    GemmTile(32, 64, 16, 4, 4),
    GemmTile(32, 32, 16, 4, 4),
    GemmTile(64, 64, 8, 4, 4),
    GemmTile(64, 64, 32, 8, 8),
)


# The first that makes enough workgroups is the default, or the last that the device can hold. H200, us, by 0, 3, 4, 5,
# 8: 4096^3 3280 3360 3810 4710 over 5200; 1024^3 over 84, over 84, 71 84 99; 512^3 over 42, over 42, 24 27 19.
_SHARED_RULE = (0, 3, 4, 5, 8)


_ENOUGH_BLOCKS = 256


LEAST_TILE = SHARED_TILES[_SHARED_RULE[-1]]


def operand_binds(call: Call, swapped: bool) -> tuple[Bind, ...]:
    """The bindings, with a and b in the other order where the transposed problem is solved."""
    first, second = ("b", "a") if swapped else ("a", "b")
    return (*read(first, second, "bias" if call.has("bias") else None), *write("y"))


@dataclasses.dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of a product: act(alpha product + beta bias), with the parameters of the activation, or the scale
    and shift behind one that has none. The slopes of prelu lie along the rows."""

    act: str = "none"
    has_bias: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    act_a: float = 0.0
    act_b: float = 0.0
    is_rescaled: bool = False


def epilogue_of(call: Call, bias: str = "bias") -> Epilogue:
    """That of a call, whose operand with the bias has this name."""
    alpha, beta = (float(call[name]) if name in call.attrs else 1.0 for name in ("alpha", "beta"))
    a, b = epilogue_numbers(call)
    return Epilogue(call["act"], call.has(bias), alpha, beta, a, b, rescales(call.attrs))


def push_block(g: Layout, e: Epilogue) -> tuple[Word, ...]:
    """The push block of shaders/include/matmul.glsl."""
    batch = ((1, 0, 0),) * (MAX_BATCH_GROUPS - len(g.batch)) + g.batch
    by_field = (word for words in zip(*batch, strict=True) for word in words)
    return (g.m, g.n, g.k, *g.a, *g.b, *g.y, *by_field, *g.base, e.alpha, e.beta, e.act_a, e.act_b)


def constants(g: Layout, e: Epilogue) -> tuple[Word, ...]:
    """The specialization constants that every shader has."""
    return *epilogue_constants(e.act, e.has_bias, e.is_rescaled), g.bias_by_row


def register_product(
    g: Layout,
    e: Epilogue,
    binds: tuple[Bind, ...],
    params: Params,
    device: Device,
    *more: Word,
    shader: Shader = REGISTER,
) -> Dispatch:
    """A product by tiles of ``rows`` x ``columns`` per invocation; bindings are a, b, bias and y."""
    rows, columns, local = (params[name] for name in ("rows", "columns", "local"))
    workgroups = g.batches * ceil_div(g.m, rows) * ceil_div(g.n, local * columns)
    groups = linear_groups(workgroups * local, local, device)
    spec = (*constants(g, e), rows, columns, *more)
    return positional(shader, binds, groups, (local, 1, 1), push_block(g, e), spec, loop_iterations=g.k)


def subgroup_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The sizes that `subgroup_product` may take for a call on a device."""
    lanes = device.subgroup_size
    g = layout(call)
    swap = g.n < lanes < g.m
    g = g.swapped() if swap else g
    sizes = _SUBGROUP_ROWS_LONG if 2 * g.batches * g.m * g.n * g.k >= _LONG_FLOPS else _SUBGROUP_ROWS
    return {
        "rows": sizes.values(g.m),
        "columns": _SUBGROUP_COLUMNS.values(ceil_div(g.n, lanes)),
        "local": local_sizes(device, lanes, 2 * lanes, 4 * lanes),
        "swap": (1, 0) if swap else (0, 1),
    }


def subgroup_product(g: Layout, e: Epilogue, binds: tuple[Bind, ...], params: Params, device: Device) -> Dispatch:
    """A product by tiles of ``rows`` x ``columns`` per invocation, the rows of a shared by the lanes of a subgroup;
    bindings are a, b, bias and y."""
    vec4 = params["columns"] % 4 == 0 and _by_fours(g)
    return register_product(g, e, binds, params, device, device.subgroup_size, vec4, shader=SUBGROUP)


def _by_fours(g: Layout) -> bool:
    """Whether rows of b and y are whole fours from the first element on."""
    steps = (g.n, g.b[0], g.y[0], *g.base[1:], g.m * g.n, *(b for _, _, b in g.batch))
    return g.b[1] == 1 and g.y[1] == 1 and all(step % 4 == 0 for step in steps)


def lies_in(
    count: int, extents: tuple[int, int], strides: tuple[int, int], base: int, batch: Sequence[int] = ()
) -> bool:
    """Whether a matrix lies in rows or columns that are whole fours, or whatever ``count`` is."""
    if 1 not in strides:
        return False
    inner = strides.index(1)
    return all(step % count == 0 for step in (extents[inner], strides[1 - inner], base, *batch))


def padded_bytes(tile: GemmTile) -> int:
    """Shared memory of a workgroup: rows of the tiles have four numbers more."""
    return tile.shared_bytes + 4 * 8 * tile.depth


def shared_params(g: Layout, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The tiles that `shared_product` may take, the rule's pick first."""
    shared = device.limit("maxComputeSharedMemorySize")
    fitting = [
        i
        for i, tile in enumerate(SHARED_TILES)
        if tile.local <= most_invocations(device) and padded_bytes(tile) <= shared
    ]
    rule = [i for i in _SHARED_RULE if i in fitting]
    best = next((i for i in rule if _blocks(g, SHARED_TILES[i]) >= _ENOUGH_BLOCKS), rule[-1] if rule else 0)
    return {"tile": (best, *(i for i in fitting if i != best))}


def _blocks(g: Layout, tile: GemmTile) -> int:
    return g.batches * ceil_div(g.m, tile.rows) * ceil_div(g.n, tile.columns)


def shared_product(g: Layout, e: Epilogue, binds: tuple[Bind, ...], tile: GemmTile, device: Device) -> Dispatch:
    """A product by tiles in shared memory; bindings are a, b, bias and y."""
    groups = linear_groups(_blocks(g, tile) * tile.local, tile.local, device)
    a_fours = lies_in(4, (g.m, g.k), g.a, g.base[0], [a for _, a, _ in g.batch])
    b_fours = lies_in(4, (g.k, g.n), g.b, g.base[1], [b for _, _, b in g.batch])
    spec = (*constants(g, e), *tile.sizes[:5], g.a[0] == 1, g.b[0] == 1, a_fours, b_fours)
    iterations = ceil_div(g.k, tile.depth) + 1
    return positional(SHARED, binds, groups, (tile.local, 1, 1), push_block(g, e), spec, padded_bytes(tile), iterations)
