"""Matrix product with numpy's broadcasting over batches; ONNX Gemm is the case with a bias and factors.

a is (..., M, K) or, with trans_a, (..., K, M); b is (..., K, N) or (..., N, K); bias is (N);
y = act(alpha a b + beta bias) is (..., M, N). Operands have rank 2 or more: an importer reshapes vectors.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from vkconv.core import Array, GraphError, ceil_div, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.activation import activation, apply
from vkconv.ops.base import Attr, Attrs, Op, Operand, Specs, linear_groups
from vkconv.ops.needs import F32, ON_GPU, invocations, shared_bytes
from vkconv.route import Call, Need, Route
from vkconv.shader import Bind, Dispatch, Program, Shader, Word, read, write

MAX_BATCH_GROUPS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """A call as matrices with strides in elements: (row, column) of a, b and y, and per batch group (outermost
    first) its extent and the strides of a and b over it."""

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    y: tuple[int, int]
    batch: tuple[tuple[int, int, int], ...]
    bias_by_row: bool = False

    @property
    def batches(self) -> int:
        return math.prod(extent for extent, _, _ in self.batch)

    def swapped(self) -> "Layout":
        """The transposed problem, y^T = b^T a^T, over the same memory."""
        batch = tuple((extent, b, a) for extent, a, b in self.batch)
        return Layout(self.n, self.m, self.k, self.b[::-1], self.a[::-1], self.y[::-1], batch, not self.bias_by_row)


def layout(call: Call) -> Layout:
    """Strides of a call. Neighbouring batch dimensions that broadcast alike are one group, and the batch of a
    is more rows when b has none."""
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
    if len(groups) == 1 and groups[0][2] == 1 and not call["trans_a"]:
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


def _resolve(specs: Specs, attrs: Attrs) -> tuple[Attrs, tuple[TensorSpec, ...]]:
    a, b, bias = specs["a"], specs["b"], specs.get("bias")
    assert a is not None and b is not None
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise GraphError(f"matmul takes operands of rank 2 or more, not {a} and {b}; reshape a vector to a matrix")
    if not a.dtype.is_float or any(s.dtype != a.dtype for s in (b, bias) if s is not None):
        raise GraphError(
            f"matmul takes operands of one float dtype, not {', '.join(str(s) for s in (a, b, bias) if s)}"
        )
    m, k = a.dims[-2:] if not attrs["trans_a"] else a.dims[:-3:-1]
    k_b, n = b.dims[-2:] if not attrs["trans_b"] else b.dims[:-3:-1]
    if k != k_b:
        raise GraphError(f"a ({shape_str(a.shape)}) sums over {k} elements, but b ({shape_str(b.shape)}) has {k_b}")
    try:
        lead = np.broadcast_shapes(a.dims[:-2], b.dims[:-2])
    except ValueError:
        raise GraphError(
            f"the batches of a ({shape_str(a.shape)}) and b ({shape_str(b.shape)}) do not broadcast"
        ) from None
    if bias is not None and bias.dims != (n,):
        raise GraphError(f"the bias is {shape_str(bias.shape)}; with {n} columns it is {n}")
    activation(str(attrs["act"]))
    y = TensorSpec((*lead, m, n), a.dtype)
    groups = len(layout(Call("matmul", specs, {"y": y}, attrs)).batch)
    if groups > MAX_BATCH_GROUPS:
        raise GraphError(
            f"the batches of a ({shape_str(a.shape)}) and b ({shape_str(b.shape)}) broadcast in {groups} separate "
            f"groups of dimensions, of which there may be {MAX_BATCH_GROUPS}; expand one operand first"
        )
    return attrs, (y,)


def _reference(call: Call, arrays: Mapping[str, Array | None]) -> Sequence[Array]:
    a, b = (np.asarray(arrays[name], np.float64) for name in "ab")
    a = np.swapaxes(a, -1, -2) if call["trans_a"] else a
    b = np.swapaxes(b, -1, -2) if call["trans_b"] else b
    y = call["alpha"] * np.matmul(a, b)
    bias = arrays.get("bias")
    if bias is not None:
        y = y + call["beta"] * np.asarray(bias, np.float64)
    return [apply(call["act"], y, call["act_a"], call["act_b"])]


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """Outputs of one invocation (``rows`` x ``cols``) and lanes of a workgroup of the register route."""

    local: int
    rows: int
    cols: int


# lavapipe: 8 lanes are one SIMD vector, and a big tile hides its scalar loads (DESIGN.md section 7: 10.9 GFLOP/s).
_TILES: Mapping[str, Tiles] = {"cpu": Tiles(8, 8, 16)}
_GPU_TILES = Tiles(64, 8, 4)

REGISTER = Shader("matmul_register")
SHARED = Shader("matmul_shared")
SHARED_TILE = (64, 64, 16, 4, 4)  # BM, BN, BK, TM, TN
_SHARED_LOCAL = SHARED_TILE[0] // SHARED_TILE[3] * SHARED_TILE[1] // SHARED_TILE[4]
_SHARED_BYTES = 4 * SHARED_TILE[2] * (SHARED_TILE[0] + SHARED_TILE[1])


def even_tile(extent: int, most: int) -> int:
    """The smallest tile that needs no more tiles than tiles of ``most`` do, so that little of the last is waste."""
    return ceil_div(extent, max(1, ceil_div(extent, most)))


def _binds(call: Call, swapped: bool) -> tuple[Bind, ...]:
    # A call without bias binds b there: HAS_BIAS is false and the shader never reads it.
    first, second = ("b", "a") if swapped else ("a", "b")
    return (*read(first, second, "bias" if call.has("bias") else "b"), *write("y"))


def _push(call: Call, g: Layout) -> tuple[Word, ...]:
    batch = ((1, 0, 0),) * (MAX_BATCH_GROUPS - len(g.batch)) + g.batch
    factors = (float(call[name]) for name in ("alpha", "beta", "act_a", "act_b"))
    return (g.m, g.n, g.k, *g.a, *g.b, *g.y, *(word for words in zip(*batch, strict=True) for word in words), *factors)


def _spec(call: Call, g: Layout) -> tuple[Word, ...]:
    return activation(call["act"]).id, call.has("bias"), g.bias_by_row


def _build_register(call: Call, device: Device) -> Program:
    g, t = layout(call), _TILES.get(device.kind, _GPU_TILES)
    # Lanes lie along the columns: a tall narrow product is computed as its transpose.
    swap = g.n < t.local < g.m
    g = g.swapped() if swap else g
    rows, cols = even_tile(max(1, g.m), t.rows), even_tile(ceil_div(max(1, g.n), t.local), t.cols)
    workgroups = g.batches * ceil_div(g.m, rows) * ceil_div(g.n, t.local * cols)
    groups = linear_groups(workgroups * t.local, t.local, device)
    spec = (*_spec(call, g), rows, cols)
    return Program((Dispatch(REGISTER, _binds(call, swap), groups, (t.local, 1, 1), _push(call, g), spec),))


def _build_shared(call: Call, device: Device) -> Program:
    g, local = layout(call), _SHARED_LOCAL
    workgroups = g.batches * ceil_div(g.m, SHARED_TILE[0]) * ceil_div(g.n, SHARED_TILE[1])
    groups = linear_groups(workgroups * local, local, device)
    spec = (*_spec(call, g), *SHARED_TILE, g.a[0] == 1, g.b[0] == 1)
    step = Dispatch(SHARED, _binds(call, False), groups, (local, 1, 1), _push(call, g), spec, _SHARED_BYTES)
    return Program((step,))


def _sides(call: Call, device: Device) -> str:
    g = layout(call)
    return f"{g.m}x{g.n}"


AT_LEAST_32X32 = Need(
    "at least 32 rows and 32 columns", lambda call, device: min(layout(call).m, layout(call).n) >= 32, _sides
)

ROUTES = (
    Route(
        "shared",
        _build_shared,
        (SHARED,),
        why="64x64 tiles in shared memory: each element that is loaded serves 64 outputs",
        must=(F32, shared_bytes(_SHARED_BYTES), invocations(_SHARED_LOCAL)),
        prefer=(ON_GPU, AT_LEAST_32X32),
    ),
    Route(
        "register",
        _build_register,
        (REGISTER,),
        why="a register tile per invocation, no shared memory or barrier, which a CPU driver emulates slowly; "
        "takes every legal call",
        must=(F32,),
    ),
)

MATMUL = Op(
    "matmul",
    operands=(Operand("a"), Operand("b"), Operand("bias", optional=True)),
    outputs=("y",),
    resolve=_resolve,
    reference=_reference,
    attrs=(
        Attr("trans_a", "ta", bool, False),
        Attr("trans_b", "tb", bool, False),
        Attr("alpha", "alpha", float, 1.0),
        Attr("beta", "beta", float, 1.0),
        Attr("act", "act", str, "none"),
        Attr("act_a", "act_a", float, 0.0),
        Attr("act_b", "act_b", float, 0.0),
    ),
    routes=ROUTES,
    terms=lambda call: call.shape("a")[-2 if call["trans_a"] else -1] + call.has("bias"),
    flops=lambda call: 2 * math.prod(call.shape("y")) * call.shape("a")[-2 if call["trans_a"] else -1],
    cases=(
        "matmul:a=1x40x120,b=120x360,bias=360",
        "matmul:a=1x8x40x15,b=1x8x15x40",
        "matmul:a=65x33,b=33x130,bias=130,act=relu",
        "matmul:a=70x129,b=67x129,tb=1,alpha=0.5,beta=2,bias=67",
        "matmul:a=19x37,b=19x83,ta=1",
        "matmul:a=3x17x5,b=3x21x17,ta=1,tb=1,act=sigmoid",
        "matmul:a=5x7x1,b=1x3",
        "matmul:a=1x257,b=257x1,bias=1",
        "matmul:a=301x7,b=7x2,bias=2,act=leaky_relu,act_a=0.25",
        "matmul:a=2x1x3x4x5,b=7x1x5x6",
        "matmul:a=1x2x1x3x2x5,b=4x1x2x1x5x3",
        "matmul:a=4x6x5,b=5x9,ta=0",
        "matmul:a=4x5x6,b=5x9,ta=1",
        "matmul:a=70000x1x2,b=70000x2x1",
    ),
    doc="Matrix product with broadcast batches, transposes, factors, a bias per column and a fused activation.",
)
